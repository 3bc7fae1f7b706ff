// A rank that closes in the middle of what its peers do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tutti/backends/store.h"
#include "tutti/base/deadline.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

void wait_for(const std::atomic<int>& count, int least) {
  const auto until = Deadline::after(20);
  while (count < least && !until.passed()) std::this_thread::sleep_for(milliseconds(1));
  ASSERT_GE(count, least);
}

/// Holds threads that come to it while it is on, and counts them.
class Gate {
 public:
  void turn_on() { is_on_ = true; }
  const std::atomic<int>& held() const { return held_; }
  /// Lets the next of them go.
  void release() { ++released_; }
  void pass() {
    if (!is_on_) return;
    const int own = ++held_;
    const auto until = Deadline::after(20);
    while (released_ < own && !until.passed()) std::this_thread::sleep_for(milliseconds(1));
  }

 private:
  std::atomic<bool> is_on_{false};
  std::atomic<int> held_{0}, released_{0};
};

Error error_of(Work& work) {
  try {
    work.wait();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::internal, "it ended well"};
}

// Rank 1 has asked for x, closes, and says its farewell in a step in which the answer has come
// already: it must not take part with nothing, as if it had joined.
class Closing : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Closing, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "allgather" : "allreduce");
});

TEST_P(Closing, ARankTakesPartInNothingAfterItsFarewell) {
  constexpr size_t kSize = 3;
  const auto store = make_memory_store();
  Gate asking, packing;  // of rank 1; of rank 2
  std::atomic<int> answered{0};
  std::vector<Options> options;
  for (int rank = 0; rank < static_cast<int>(kSize); ++rank) {
    options.push_back(Options::thread_rank(rank, kSize, store));
    options.back().backend = "memory";
    options.back().close_timeout = 2;
  }
  std::atomic<bool> is_x{false};
  options[0].observer = [&](std::string_view phase) { answered += is_x && phase == "transfer"; };
  options[1].observer = [&](std::string_view phase) {
    if (phase == "negotiation") asking.pass();
  };
  options[2].observer = [&](std::string_view phase) {
    if (phase == "pack") packing.pass();
  };
  std::vector<std::unique_ptr<Communicator>> ranks(kSize);
  std::vector<std::thread> makers;
  for (size_t rank = 0; rank < kSize; ++rank)
    makers.emplace_back([&, rank] { ranks[rank] = Communicator::create(options[rank]); });
  for (auto& maker : makers) maker.join();

  std::vector<std::vector<float>> x;
  for (size_t rank = 0; rank < kSize; ++rank) x.emplace_back(1000, static_cast<float>(1 << rank));
  const auto start = [&](size_t rank) {
    return GetParam() ? ranks[rank]->allgather("x", x[rank])
                      : ranks[rank]->allreduce("x", std::span(x[rank]), ReduceOp::sum);
  };
  auto own = start(1);
  std::thread waits([&] { EXPECT_EQ(error_of(own).code(), ErrorCode::closed); });
  std::this_thread::sleep_for(milliseconds(50));  // that thread drives the engine by now
  std::vector<float> y(10, 1), z(10, 1);
  asking.turn_on();
  auto first = ranks[1]->allreduce("y", y);
  wait_for(asking.held(), 1);
  auto second = ranks[1]->allreduce("z", z);
  std::thread closes([&] { ranks[1]->close(); });
  std::this_thread::sleep_for(milliseconds(50));  // it has said so, and waits
  asking.release();
  wait_for(asking.held(), 2);  // in the step that shuts, before the farewell

  if (!GetParam()) packing.turn_on();
  is_x = true;
  auto of_0 = start(0), of_2 = start(2);
  std::thread drives([&] { EXPECT_EQ(error_of(of_0).code(), ErrorCode::peer_left); });
  std::thread drives_too([&] {
    const auto error = error_of(of_2);
    EXPECT_EQ(error.code(), ErrorCode::peer_left)
        << error.what() << "; the first element is " << x[2][0] << ", of a sum of 7";
    EXPECT_EQ(error.rank(), 1);
  });
  if (!GetParam()) wait_for(packing.held(), 1);
  wait_for(answered, 1);
  asking.release();
  std::this_thread::sleep_for(milliseconds(200));  // rank 1 goes on with that step
  packing.release();
  for (auto* thread : {&waits, &drives, &drives_too, &closes}) thread->join();
  EXPECT_EQ(error_of(first).code(), ErrorCode::closed);
  EXPECT_EQ(error_of(second).code(), ErrorCode::closed);
}

// What rank 0 hears of rank 1, which lives in the thread of the caller.
std::string heard_of(const std::function<void(const Options&)>& live) {
  const auto store = make_memory_store();
  const auto options = [&](int rank) {
    auto made = Options::thread_rank(rank, 2, store);
    made.backend = "memory";
    return made;
  };
  std::string text;
  std::thread other([&] {
    const auto comm = Communicator::create(options(0));
    std::vector<float> values(10);
    try {
      comm->allreduce("x", values).wait();
    } catch (const Error& error) {
      text = error.what();
    }
  });
  live(options(1));
  other.join();
  return text;
}

TEST(Unwinding, ACommunicatorThatAnExceptionDestroysClosesBecauseOfAnError) {
  const auto text = heard_of([](const Options& options) {
    try {
      const auto comm = Communicator::create(options);
      throw std::runtime_error("of the program");
    } catch (const std::runtime_error&) {
    }
  });
  EXPECT_THAT(text, testing::HasSubstr("rank 1 ("));
  EXPECT_THAT(text, testing::HasSubstr("closed its Communicator because of an error (an exception; "
                                       "its own output says which), so nothing that needs all "
                                       "ranks can be done any more; shrink() gives"));
}

// Of a program that tidies up with a Communicator of its own.
TEST(Unwinding, AnExceptionThatWasThereBeforeTheCommunicatorIsNoReason) {
  const auto text = heard_of([](const Options& options) {
    struct TidiesUp {
      ~TidiesUp() { Communicator::create(options); }
      const Options& options;
    };
    try {
      const TidiesUp at_the_end{options};
      throw std::runtime_error("of the program");
    } catch (const std::runtime_error&) {
    }
  });
  EXPECT_THAT(text, testing::HasSubstr("closed its Communicator, so nothing"));
}

}  // namespace
}  // namespace tutti
