// One rank of the tests of several deaths. Some ranks kill themselves at given times. The others
// must end in one communicator of all living ranks, whatever was interrupted.
//
//   dying_rank start|run RANK@MICROSECONDS,...
//
// The times count from this process's start, or (run) from the end of the first barrier.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/text.h"
#include "tutti/core/tutti.h"

namespace {

using namespace tutti;
using std::chrono::microseconds;

struct Kills {
  std::vector<std::pair<int, microseconds>> all;  // rank and time

  explicit Kills(const std::string& text) {
    for (const auto& word : split_text(text, ',')) {
      const auto at = word.find('@');
      all.emplace_back(std::atoi(word.c_str()), microseconds(std::atoi(word.c_str() + at + 1)));
    }
  }
  void arm(int rank, Clock::time_point begin) const {
    for (const auto& [victim, when] : all)
      if (victim == rank)
        std::thread([due = begin + when] {
          std::this_thread::sleep_until(due);
          ::kill(::getpid(), SIGKILL);
        }).detach();
  }
  Clock::time_point last(Clock::time_point begin) const {
    microseconds latest{0};
    for (const auto& kill : all) latest = std::max(latest, kill.second);
    return begin + latest;
  }
};

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

// Takes steps until all ranks report that no rank is left to die.
void train(Communicator& comm, Clock::time_point quiet) {
  std::vector<float> gradient(50'000, 1.0f);
  while (true) {
    comm.allreduce("gradient", gradient, ReduceOp::sum).wait();
    if (gradient.back() != static_cast<float>(comm.size()))
      say(fmt::format("unexpected: sum {} of {} ranks", gradient.back(), comm.size()));
    std::fill(gradient.begin(), gradient.end(), 1.0f);
    std::vector<int32_t> busy{Clock::now() < quiet};
    comm.allreduce("busy", busy, ReduceOp::sum).wait();
    if (busy[0] == 0) return;
  }
}

// Prints the original numbers of the remaining ranks; all ranks print the same.
void show_members(Communicator& comm, int launched) {
  const int32_t own = launched;
  const auto all = comm.allgather_bytes("members", std::as_bytes(std::span(&own, 1)));
  std::vector<int32_t> members(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank)
    std::memcpy(&members[rank], all[rank].data(), sizeof(int32_t));
  say(fmt::format("rank {} ends as {} of [{}]", launched, comm.rank(), fmt::join(members, " ")));
  comm.barrier_blocking();
}

// Tries until a first communicator exists; after a death, with the remaining ranks.
std::unique_ptr<Communicator> create(const Options& launched) {
  auto options = launched;
  while (true) {
    try {
      return Communicator::create(options);
    } catch (const Error& error) {
      say(fmt::format("rank {} could not create: names {}: {}", launched.rank, error.rank(),
                      error.what()));
      if (error.code() != ErrorCode::peer_lost || error.rank() < 0) throw;
      if (error.rank() < options.rank) --options.rank;
      --options.size;
      options.local_rank = 0;
      options.local_size = 1;
    }
  }
}

int run(const std::string& since, const Kills& kills) {
  auto options = Options::from_environment();
  options.probe_folder.clear();
  const int launched = options.rank;
  auto begin = Clock::now();
  if (since == "start") kills.arm(launched, begin);
  auto comm = create(options);
  if (since == "run") {
    try {
      comm->barrier_blocking();
    } catch (const Error& error) {
      // A rank that left the barrier before this rank is already dead. The next operation reports
      // that again.
      say(fmt::format("rank {} names {}: {}", launched, error.rank(), error.what()));
    }
    begin = Clock::now();
    kills.arm(launched, begin);
  }
  const auto quiet = kills.last(begin) + std::chrono::milliseconds(200);
  while (true) {
    try {
      train(*comm, quiet);
      break;
    } catch (const Error& error) {
      say(fmt::format("rank {} names {}: {}", launched, error.rank(), error.what()));
    }
    comm = comm->shrink(Deadline::after(20));
    say(fmt::format("rank {} goes on as {} of {}", launched, comm->rank(), comm->size()));
  }
  show_members(*comm, launched);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fputs("usage: dying_rank start|run RANK@MICROSECONDS,...\n", stderr);
    return 2;
  }
  try {
    return run(arguments[1], Kills(arguments[2]));
  } catch (const std::exception& error) {
    say(fmt::format("unexpected: {}", error.what()));
    return 1;
  }
}
