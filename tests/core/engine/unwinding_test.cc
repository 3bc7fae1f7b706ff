// An exception destroys a Communicator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"
#include "tutti/backends/store.h"
#include "tutti/base/deadline.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

// Runs `live` as rank 1 in the caller's thread. Returns the error that rank 0 gets.
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
    text = test::error_of([&] { comm->allreduce("x", values).wait(); }).what();
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

// A program cleans up with a Communicator of its own while an exception is already thrown.
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
