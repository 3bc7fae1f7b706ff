// Threads push callbacks, one thread runs them, and one ends the queue and waits for the running
// thread.
#include "tutti/core/engine/callback_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/explore/expectations.h"
#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"

namespace tutti::explore {
namespace {

struct Called {
  CallbackQueueOf<Explored> queue{[](const std::string&) { require(false, "a callback threw"); }};
  Atomic<int> calls{0};
  std::string order;  // the order of the calls, of which each ends before the next
};

TEST(ExploredCallbackQueue, CallsEachOnceAndEnds) {
  expect_none(explore([](Model& model) {
    auto state = std::make_shared<Called>();
    const auto push = [=] { state->queue.push([&state = *state] { ++state.calls; }); };
    model.thread("pusher", [=] {
      push();
      push();
    });
    model.thread("other pusher", push);
    model.thread("runner", [=] { state->queue.run(); });
    model.thread("ender", [=] {
      state->queue.end();
      require(state->queue.wait_for_end(Deadline::never()), "a deadline that never passes");
    });
    model.finally([=] { require(state->calls == 3, "not each was called once"); });
  }));
}

// All callbacks run before the end. Once the queue is over, their writes are visible.
TEST(ExploredCallbackQueue, CallsOneAfterAnother) {
  expect_none(explore([](Model& model) {
    auto state = std::make_shared<Called>();
    model.thread("pusher", [=] {
      for (const char name : {'a', 'b', 'c'})
        state->queue.push([&state = *state, name] {
          Explored::writes(&state.order);
          state.order += name;
        });
      state->queue.end();
      state->queue.wait_for_end(Deadline::never());
      Explored::reads(&state->order);
      require(state->order == "abc", "not all, or not in order");
    });
    model.thread("runner", [=] { state->queue.run(); });
  }));
}

}  // namespace
}  // namespace tutti::explore
