#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/scratch_folder.h"
#include "tests/tensor/fake_device.h"
#include "tutti/backends/store.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"

#ifdef __SANITIZE_THREAD__
// tsan takes the parent's threads for threads that the fork forgot to join.
extern "C" [[gnu::used]] const char* __tsan_default_options() { return "report_thread_leaks=0"; }
#endif
namespace tutti::test {
// True in a process that was forked off a rank. The parent's other threads do not exist in it.
inline bool& is_forked_off() {
  static bool forked_off = false;
  return forked_off;
}
}  // namespace tutti::test
#ifdef __SANITIZE_ADDRESS__
// Memory that only those threads refer to would be a leak in a fork.
extern "C" [[gnu::used]] int __lsan_is_turned_off() { return tutti::test::is_forked_off() ? 1 : 0; }
#endif

namespace tutti::test {

/// Jobs whose ranks train while processes are forked off them. The training thread forks in the
/// middle of a step. Another thread forks at any moment, so that any lock may be held in the fork.
/// A fork calls every function, destroys the rank's objects in a random order, and ends in one of
/// several ways. The parent and its peer must not notice: every number is checked.
class ForkedRank {
 public:
  static constexpr int kForks = 4;  // forks of each rank by its other thread
  static constexpr int64_t kCount = 3000;

  ForkedRank(const Options& options, uint64_t seed)
      : rank_(options.rank),
        random_(seed * 16 + static_cast<uint64_t>(options.rank)),
        device_(*new FakeDevice) {
    held_.comm = Communicator::create(options);
    held_.part = held_.comm->split(0, options.rank);
    held_.handle = held_.comm->declare("handle", Shape{kCount}, DataType::f32);
    held_.arena = std::make_unique<GradientArena>(*held_.comm, arrays());
    held_.fused = std::make_unique<GradientArena>(*held_.comm, arrays(), ReduceOptions{},
                                                  &ForkedRank::apply, this);
    held_.server = std::make_unique<TcpStoreServer>("127.0.0.1", 0, "secret");
    held_.local = held_.server->local();
    held_.client =
        connect_tcp_store("127.0.0.1", held_.server->port(), "secret", Deadline::after(20));
    held_.memory = make_memory_store();
    // A thread sleeps in each store all the time. In the client two do, one of which reads the
    // socket.
    for (auto* store : {&held_.local, &held_.client, &held_.client, &held_.memory})
      sleepers_.emplace_back([store = *store] { store->get("end", Deadline::after(60)); });
    held_.device_tensor = Tensor(Shape{kCount}, DataType::f32, {DeviceKind::fake, 0});
    late_.assign(kCount, 1.0f);
    odd_.assign(options.rank == 0 ? 4 : 5, 1.0f);
    // Rank 1 submits "late" at the end.
    if (options.rank == 0) held_.pending = held_.comm->allreduce("late", late_, ReduceOp::sum);
    held_.failed = held_.comm->allreduce("odd", odd_);
    held_.done = held_.comm->barrier("done");
    held_.done.wait();
    while (!held_.failed.done()) std::this_thread::yield();
  }

  // Returns the exit code. It also returns in the forks of the training thread.
  int train() {
    sleepers_.emplace_back([this] { fork_at_any_moment(); });
    const uint64_t fork_at = 5 + random_() % 20;
    for (uint64_t step = 0;; ++step) {
      const int code = one_step(static_cast<float>(step % 100), step == fork_at);
      if (is_fork_) return code;
      // All ranks end after the same step.
      float forked = all_forked_ && step > fork_at ? 1 : 0;
      held_.comm->allreduce_blocking("forked", std::span(&forked, 1), ReduceOp::sum);
      if (forked == static_cast<float>(held_.comm->size())) break;
    }
    return finish();
  }

 private:
  struct Held {
    std::unique_ptr<Communicator> comm, part;
    std::unique_ptr<GradientArena> arena, fused;
    TensorHandle handle;
    std::unique_ptr<TcpStoreServer> server;
    std::shared_ptr<Store> local, client, memory;
    Work done, pending, failed, staged;
    Tensor device_tensor;
  };

  static std::vector<GradientArena::Array> arrays() { return {{"a", {70'000}}, {"b", {1000}}}; }

  static void apply(void* self, int64_t offset, int64_t count, const std::byte* reduced) {
    auto* const rank = static_cast<ForkedRank*>(self);
    std::memcpy(rank->held_.fused->values() + offset, reduced,
                static_cast<size_t>(count) * sizeof(float));
  }

  void expect(bool is_right, const char* what) {
    if (is_right) return;
    std::fprintf(stderr, "rank %d: %s\n", rank_, what);
    wrong_ = 1;
  }
  void expect_all(std::span<const float> values, float wanted, const char* what) {
    expect(std::all_of(values.begin(), values.end(), [&](float value) { return value == wanted; }),
           what);
  }

  int one_step(float step, bool forks) {
    auto& comm = *held_.comm;
    const auto size = static_cast<float>(comm.size());
    const auto mine = static_cast<float>(rank_) + step;
    const float mean = (size - 1) / 2 + step;
    std::vector<float> named(kCount, mine), by_handle(kCount, mine);
    std::vector<Work> works;
    works.push_back(comm.allreduce("named", named));
    works.push_back(comm.allreduce(held_.handle, by_handle));
    for (float& value : held_.device_tensor.span<float>()) value = mine;
    held_.staged = comm.allreduce("staged", TensorView(held_.device_tensor.data(), Shape{kCount},
                                                       DataType::f32, {DeviceKind::fake, 0}, {}));
    for (auto* arena : {held_.arena.get(), held_.fused.get()})
      for (const char* name : {"a", "b"}) {
        const auto view = (*arena)[name];
        std::fill_n(view.as<float>(), view.count(), mine);
        arena->ready(name);
      }
    if (forks) {
      if (const int code = fork_here(); is_fork_) return code;
    }
    for (auto& work : works) work.wait();
    held_.arena->wait();
    held_.fused->wait();
    held_.staged.wait();
    expect_all(named, mean, "a named tensor is wrong");
    expect_all(by_handle, mean, "a declared tensor is wrong");
    expect_all(held_.device_tensor.span<float>(), mean, "a tensor of a device is wrong");
    for (const char* name : {"a", "b"}) {
      const auto array = (*held_.arena)[name], value = held_.fused->value(name);
      expect_all({array.as<float>(), static_cast<size_t>(array.count())}, mean,
                 "an array of the arena is wrong");
      expect_all({value.as<float>(), static_cast<size_t>(value.count())}, mean,
                 "an updated value is wrong");
    }
    return 0;
  }

  int finish() {
    for (auto& store : {held_.local, held_.memory}) store->set("end", "");
    for (auto& sleeper : sleepers_) sleeper.join();
    if (rank_ == 1) held_.pending = held_.comm->allreduce("late", late_, ReduceOp::sum);
    if (rank_ > 1) held_.comm->allreduce("late", late_, ReduceOp::sum).wait();
    if (rank_ <= 1) held_.pending.wait();
    expect_all(late_, static_cast<float>(held_.comm->size()), "the late tensor is wrong");
    try {
      held_.failed.wait();
      expect(false, "a mismatch was forgotten");
    } catch (const Error& error) {
      expect(error.code() == ErrorCode::mismatch, error.what());
    }
    float one = 1;
    held_.part->allreduce_blocking("part", std::span(&one, 1), ReduceOp::sum);
    expect(one == static_cast<float>(held_.part->size()), "the split communicator is wrong");
    expect(held_.client->add("counter", 1) == 1, "the served store is wrong");
    held_.comm->barrier_blocking();
    return wrong_;
  }

  // --- forks ---

  // Forks the training thread. The fork returns through the functions that called this one.
  int fork_here() {
    const uint64_t seed = random_();
    const pid_t child = ::fork();
    if (child == 0) {
      begin_fork();
      visit(seed);
      return wrong_;
    }
    // The step goes on meanwhile. The other thread waits for the fork and checks how it ended.
    forked_here_ = child;
    return 0;
  }

  void fork_at_any_moment() {
    std::minstd_rand random(static_cast<unsigned>(rank_) + 77);
    for (int i = 0; i < kForks; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      const pid_t child = ::fork();
      if (child == 0) {
        begin_fork();
        visit(random());
        if (wrong_ != 0) ::_exit(wrong_);
        if (i == 0) ::_exit(0);
        if (i == 1) std::exit(0);
        if (i == 2) destroy(random());
#ifdef __SANITIZE_THREAD__
        ::_exit(0);  // tsan does not survive the return below
#endif
        return;  // the only thread of the fork ends, and so does the process
      }
      await(child);
    }
    while (forked_here_ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    await(forked_here_);
    all_forked_ = true;
  }

  void await(pid_t child) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0,
           fmt::format("a fork ended with status {:#x}", status).c_str());
  }

  void begin_fork() {
    is_fork_ = is_forked_off() = true;
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(20);  // kills a fork that hangs; the parent sees the signal
  }

  void visit(uint64_t seed) {
    if (seed % 4 != 0) call_each_call();
    if (seed % 3 != 0) destroy(seed);
  }

  void call_each_call() {
    auto& comm = *held_.comm;
    std::vector<float> values(4, 1.0f);
    std::vector<int64_t> rows(static_cast<size_t>(comm.size()), 1);
    const TensorView view(values);
    const std::array<NamedTensor, 1> group = {NamedTensor{"member", view}};
    int64_t index = 0;
    const SparseTensor sparse{TensorView(std::span(&index, 1)),
                              TensorView(std::span(values).first(1))};
    const int other = 1 - std::min(rank_, 1);
    const std::vector<std::function<void()>> calls = {
        [&] { return comm.allreduce("x", view); },
        [&] { return comm.allreduce("x", view, view, {}); },
        [&] { return comm.allreduce(held_.handle, TensorView(late_)); },
        [&] { return comm.grouped_allreduce("g", group); },
        [&] { return comm.sparse_allreduce("x", sparse); },
        [&] { return comm.allgather("x", view); },
        [&] { return comm.grouped_allgather("g", group); },
        [&] { return comm.broadcast("x", view); },
        [&] { return comm.reduce("x", view, view); },
        [&] { return comm.gather("x", view); },
        [&] { return comm.scatter("x", view); },
        [&] { return comm.reduce_scatter("x", view); },
        [&] { return comm.grouped_reduce_scatter("g", group); },
        [&] { return comm.alltoall("x", TensorView(rows)); },
        [&] { return comm.send("x", view, other); },
        [&] { return comm.recv("x", view, other); },
        [&] { return comm.barrier(); },
        [&] { return comm.join(); },
        [&] { comm.allreduce_blocking("x", view); },
        [&] { comm.broadcast_blocking("x", view); },
        [&] { comm.reduce_blocking("x", view, view); },
        [&] { return comm.reduce_scatter("x", view, view, {}); },
        [&] { comm.barrier_blocking(); },
        [&] { comm.broadcast_bytes("x", {}); },
        [&] { comm.allgather_bytes("x", {}); },
        [&] { comm.declare("x", Shape{4}, DataType::f32); },
        [&] { comm.split(0); },
        [&] { comm.shrink(); },
        [&] { comm.statistics(); },
        [&] { comm.start_timeline("/nowhere"); },
        [&] { comm.stop_timeline(); },
        [&] { comm.timeline_span("x", Clock::now(), Clock::now()); },
        [&] {
          static_cast<void>(
              comm.allreduce("x", TensorView(held_.device_tensor.data(), Shape{kCount},
                                             DataType::f32, {DeviceKind::fake, 0}, {})));
        },
        [&] { GradientArena(comm, arrays()); },
        [&] { held_.arena->ready("a"); },
        [&] { held_.arena->leave_out("b"); },
        [&] { held_.arena->used("a"); },
        [&] { held_.arena->wait(); },
        [&] { held_.done.then([](std::exception_ptr) {}); },
        [&] { held_.failed.output(); },
        [&] { held_.done.received_counts(); },
    };
    const auto wanted = fmt::format("this process is a fork of rank {}", rank_);
    for (size_t i = 0; i < calls.size(); ++i) {
      try {
        calls[i]();
        expect(false, fmt::format("call {} went through in a fork", i).c_str());
      } catch (const Error& error) {
        // An operation that failed before the fork reports its old error.
        if (error.code() == ErrorCode::mismatch) continue;
        expect(error.code() == ErrorCode::closed &&
                   std::string_view(error.what()).find(wanted) != std::string_view::npos,
               fmt::format("call {} said: {}", i, error.what()).c_str());
      }
    }
    for (auto& store : {held_.local, held_.client}) {
      try {
        store->set("x", "y");
        expect(false, "a store took a key from a fork");
      } catch (const Error& error) {
        expect(error.code() == ErrorCode::closed, error.what());
      }
    }
    if (held_.pending && !held_.pending.done()) {
      try {
        held_.pending.wait();
        expect(false, "a fork waited for its parent's Work");
      } catch (const Error& error) {
        expect(error.code() == ErrorCode::closed, error.what());
      }
    }
  }

  void destroy(uint64_t seed) {
    std::vector<std::function<void()>> all = {
        [&] { held_.comm.reset(); },   [&] { held_.part.reset(); },
        [&] { held_.arena.reset(); },  [&] { held_.fused.reset(); },
        [&] { held_.handle = {}; },    [&] { held_.server.reset(); },
        [&] { held_.local.reset(); },  [&] { held_.client.reset(); },
        [&] { held_.memory.reset(); }, [&] { held_.done = {}; },
        [&] { held_.pending = {}; },   [&] { held_.failed = {}; },
        [&] { held_.staged = {}; },    [&] { held_.device_tensor = {}; }};
    std::shuffle(all.begin(), all.end(), std::minstd_rand(static_cast<unsigned>(seed)));
    for (const auto& one : all) one();
  }

  const int rank_;
  std::mt19937_64 random_;
  FakeDevice& device_;
  // Never destroyed, because a fork has none of these threads. There is one vector in a process, as
  // there is one rank.
  static std::vector<std::thread>& sleepers() {
    static auto* const threads = new std::vector<std::thread>;
    return *threads;
  }

  std::vector<std::thread>& sleepers_ = sleepers();
  std::vector<float> late_, odd_;
  std::atomic<pid_t> forked_here_{0};
  std::atomic<bool> all_forked_{false};
  std::atomic<int> wrong_{0};
  bool is_fork_ = false;
  Held held_;
};

/// Runs one job of two ranks over `backend` (shm or tcp). Rank 0 serves the job's store itself.
inline void run_forking_job(uint64_t seed, const std::string& backend) {
  SCOPED_TRACE(fmt::format("seed {} over {}", seed, backend));
  const ScratchFolder folder;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child > 0) {
      ranks.push_back(child);
      continue;
    }
    const auto run = [&] {
      ::alarm(60);
      Options options;
      options.rank = options.local_rank = rank;
      options.size = options.local_size = 2;
      options.launcher = "explicit";
      options.secret = "secret of a test";
      options.store = fmt::format("file://{}", folder.path());
      options.backend = backend;
      options.log_level = LogLevel::error;
      ForkedRank forked(options, seed);
      return forked.train();
    };
    int code = 99;
    try {
      code = run();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    std::exit(code);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    int status = 0;
    ASSERT_EQ(::waitpid(ranks[rank], &status, 0), ranks[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << " ended with status " << status;
  }
}

}  // namespace tutti::test
