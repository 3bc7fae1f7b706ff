// One rank of the fault tests. It trains on sums that it checks, until a rank of the job fails. It
// then reports the error and its delay, and continues with the survivors.
//
//   fault_rank VICTIM kill-at POINT OCCURRENCE STAMP     the victim kills itself at a named point
//   fault_rank VICTIM kill-after MICROSECONDS 0 STAMP    ... at any moment, once connected
//   fault_rank VICTIM stop-at ... | stop-after ...       ... or stops itself
//
// STAMP is a file into which the victim writes its pid and the time just before it ends or stops.
// With FAKE_NCCL_FOLDER, a folder of this job, the tensors live on the fake device, and NCCL is the
// fake (see tests/backends/fake_nccl). With FAULT_STORE_STANDS_STILL, tutti-run's process that
// serves the job's store is stopped with the victim. It continues when the survivors know of the
// loss. With FAULT_KIND ("allgather", "allgather_blocking") the steps are calls of that kind
// instead of allreduces.

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/kind_steps.h"
#include "tests/faults/view.h"
#include "tutti/core/tutti.h"
#if TUTTI_HAS_NCCL
#include "tests/backends/fake_nccl/rank_process.h"
#endif

namespace {

using namespace tutti;
using test::view;

double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

struct Stamp {
  int pid = 0;
  double when = 0;
};

Stamp read_stamp(const std::string& file) {
  Stamp stamp;
  std::ifstream(file) >> stamp.pid >> stamp.when;
  return stamp;
}

bool store_stands_still() { return std::getenv("FAULT_STORE_STANDS_STILL") != nullptr; }

void end_myself(const std::string& file, int signal) {
  if (store_stands_still()) ::kill(::getppid(), SIGSTOP);
  std::ofstream(file) << ::getpid() << ' ' << fmt::format("{:.6f}", seconds_now()) << std::endl;
  ::kill(::getpid(), signal);
}

const char* kind() { return std::getenv("FAULT_KIND"); }

// Takes steps of several tensors with pauses, so that the fault can hit every phase, until
// something fails.
void train(Communicator& comm) {
  constexpr int kTensors = 12;
  std::vector<std::vector<float>> gradients;
  for (int t = 0; t < kTensors; ++t) gradients.emplace_back(static_cast<size_t>(1000 + 9000 * t));
  for (int step = 0;; ++step) {
    std::vector<Work> works;
    const auto sent = [&](int t, double rank) { return static_cast<float>(rank + step % 8 + t); };
    for (int t = 0; t < kTensors; ++t) {
      auto& gradient = gradients[static_cast<size_t>(t)];
      gradient.front() = gradient.back() = sent(t, comm.rank());
    }
    for (int t = 0; t < kTensors; ++t)
      works.push_back(
          comm.allreduce(fmt::format("t{}", t), view(gradients[static_cast<size_t>(t)])));
    for (auto& work : works) work.wait();
    for (int t = 0; t < kTensors; ++t) {
      const auto& gradient = gradients[static_cast<size_t>(t)];
      const float mean = sent(t, (comm.size() - 1) / 2.0);
      if (gradient.front() != mean || gradient.back() != mean || gradient[1] != 0)
        throw std::runtime_error(fmt::format("t{} is {} and {} in step {}, not {}", t,
                                             gradient.front(), gradient.back(), step, mean));
    }
    if (step % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

int survive(Communicator& comm, const Error& error, const std::string& stamp_file, int victim) {
  const double now = seconds_now();
  const auto stamp = read_stamp(stamp_file);
  fmt::print("rank {} names {} after {:.0f} ms: {}\n", comm.rank(), error.rank(),
             (now - stamp.when) * 1000, error.what());
  std::fflush(stdout);
  if (store_stands_still()) {
    // Waits first, so that the other ranks learn of the loss while the store is stopped.
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    ::kill(::getppid(), SIGCONT);
  }
  const auto survivors = comm.shrink(Deadline::after(20));
  std::vector<float> ones(100, 1.0f);
  survivors->allreduce("after", view(ones), ReduceOp::sum).wait();
  if (kind() != nullptr) test::run_steps_of(*survivors, kind(), 3);
  fmt::print("rank {} goes on as {} of {}, sum {}\n", comm.rank(), survivors->rank(),
             survivors->size(), ones[99]);
  std::fflush(stdout);
  survivors->barrier_blocking();
  // Continues a stopped rank, to show that it does no harm.
  if (survivors->rank() == 0 && stamp.pid > 0 && comm.rank() != victim) ::kill(stamp.pid, SIGCONT);
  return 0;
}

int run(char** arguments) {
  const int victim = std::atoi(arguments[1]);
  const std::string how = arguments[2], where = arguments[3], file = arguments[5];
  const int occurrence = std::atoi(arguments[4]);
  std::thread timer;
  std::unique_ptr<Communicator> comm;
  int status = 1;
  try {
    auto options = Options::from_environment();
    options.probe_folder.clear();  // tests must not write to the user's folder
    const int signal = how.starts_with("stop") ? SIGSTOP : SIGKILL;
    const bool is_at = how.ends_with("-at");
    if (options.rank == victim && is_at) {
      auto left = std::make_shared<std::atomic<int>>(occurrence);
      options.observer = [=](std::string_view point) {
        if (point == where && left->fetch_sub(1) == 1) end_myself(file, signal);
      };
    }
    const int rank = options.rank;
    try {
      comm = Communicator::create(std::move(options));
    } catch (const Error& error) {
      const auto stamp = read_stamp(file);
      fmt::print("rank {} names {} after {:.0f} ms: {}\n", rank, error.rank(),
                 (seconds_now() - stamp.when) * 1000, error.what());
      return 0;
    }
    if (rank == victim && !is_at) {
      // The timer starts only here. A rank that stops earlier is missed when all ranks must
      // connect.
      timer = std::thread([=] {
        std::this_thread::sleep_for(std::chrono::microseconds(std::atoi(where.c_str())));
        end_myself(file, signal);
      });
      timer.detach();
    }
    try {
      if (kind() != nullptr)
        test::run_steps_of(*comm, kind(), std::numeric_limits<int>::max());
      else
        train(*comm);
    } catch (const Error& error) {
      if (rank == victim) {
        fmt::print("rank {} woke: {}\n", rank, error.what());
        return 0;
      }
      status = survive(*comm, error, file, victim);
    }
  } catch (const std::exception& error) {
    fmt::print("unexpected: {}\n", error.what());
  }
  return status;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) {
    std::fputs("usage: fault_rank VICTIM HOW WHERE OCCURRENCE STAMP\n", stderr);
    return 2;
  }
#if TUTTI_HAS_NCCL
  if (const char* folder = std::getenv("FAKE_NCCL_FOLDER")) {
    const test::FakeNcclRank fakes(folder);
    int status = run(arguments);
    for (const auto& complaint : test::FakeNcclRank::last_complaints()) {
      fmt::print("unexpected: fake NCCL: {}\n", complaint);
      status = 1;
    }
    fmt::print("rank {} had {} operations of NCCL and aborted {} of its communicators\n",
               Options::from_environment().rank, test::FakeNccl::completed(),
               test::FakeNccl::aborts());
    return status;
  }
#endif
  return run(arguments);
}
