#include "tests/support/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"
#include "tutti/backends/store.h"
#include "tutti/base/text.h"

namespace tutti::test {

namespace {

// Ends the process if the ranks do not end in time, because a thread cannot be ended from outside.
class Watchdog {
 public:
  Watchdog(int size, double seconds)
      : running_(static_cast<size_t>(size), true), thread_([this, seconds] { watch(seconds); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  void ended(int rank) {
    const std::lock_guard lock(mutex_);
    running_[static_cast<size_t>(rank)] = false;
  }

 private:
  void watch(double seconds) {
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return over_; }))
      return;
    std::vector<int> late;
    for (size_t rank = 0; rank < running_.size(); ++rank)
      if (running_[rank]) late.push_back(static_cast<int>(rank));
    std::fputs(fmt::format("{} did not end within {} s\n", format_rank_set(late), seconds).c_str(),
               stderr);
    std::_Exit(99);
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::vector<bool> running_;
  std::thread thread_;
};

}  // namespace

Tune over(std::string backend) {
  return [backend = std::move(backend)](Options& options) { options.backend = backend; };
}

void still_works(Communicator& comm) {
  std::vector<float> values(10, 1.0f);
  comm.allreduce("still works", values, ReduceOp::sum).wait();
  EXPECT_EQ(values, std::vector<float>(10, static_cast<float>(comm.size())));
}

void on_threads(int first, int end, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = first; rank < end; ++rank)
    threads.emplace_back([&body, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (auto& thread : threads) thread.join();
}

std::vector<std::string> create_refusals(int size, const Tune& tune,
                                         std::optional<ErrorCode> code) {
  std::vector<std::string> heard(static_cast<size_t>(size));
  const auto store = make_memory_store();
  on_threads(0, size, [&](int rank) {
    auto options = Options::thread_rank(rank, size, store);
    tune(options);
    const auto error = error_of([&] { Communicator::create(options); }, 10);
    EXPECT_EQ(error.code(), code.value_or(error.code())) << error.what();
    heard[static_cast<size_t>(rank)] = error.what();
  });
  return heard;
}

void run_threads(int size, const RankFunction& body, const Tune& tune, double seconds) {
  const auto store = make_memory_store();
  Watchdog watchdog(size, seconds);
  on_threads(0, size, [&](int rank) {
    try {
      auto options = Options::thread_rank(rank, size, store);
      if (tune) tune(options);
      const auto communicator = Communicator::create(std::move(options));
      body(*communicator);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
    }
    watchdog.ended(rank);
  });
}

}  // namespace tutti::test
