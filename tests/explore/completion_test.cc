// A Work ends. Two threads finish its parts, one waits, and one attaches a callback. The last
// handle restarts the Work or drops it.
#include "tutti/core/scheduling/completion.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/explore/expectations.h"
#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"

namespace tutti::explore {
namespace {

using Work = CompletionOf<Explored>;

// Finishes a part as the engine does.
void finish(Work& work, std::optional<Error> error) {
  std::vector<WorkCallback> callbacks;
  if (!work.finish_part(std::move(error), callbacks, [] {})) return;
  require(work.done(), "the last part has not ended it");
  for (const auto& callback : callbacks) callback(work.exception());
}

// Attaches a callback as WorkState does.
void then(Work& work, WorkCallback callback) {
  if (!work.then(callback)) callback(work.exception());
}

void wait(const Work& work) {
  while (!work.done()) Explored::pause();
}

TEST(ExploredCompletion, EndsOnceForAll) {
  expect_none(explore([](Model& model) {
    struct State {
      Work work{2};
      int calls = 0;
    };
    auto state = std::make_shared<State>();
    model.thread("finisher", [=] { finish(state->work, Error(ErrorCode::timeout, "late")); });
    model.thread("other finisher", [=] { finish(state->work, std::nullopt); });
    model.thread("waiter", [=] {
      wait(state->work);
      require(state->work.see_error().has_value(), "it is done, but its error is not there");
      require(state->work.unseen_error() == nullptr, "its error was seen");
    });
    model.thread("caller", [=] {
      then(state->work, [=](const std::exception_ptr& error) {
        require(state->work.done(), "called before the end");
        require(error != nullptr, "called without the error");
        Explored::writes(&state->calls);
        ++state->calls;
      });
    });
    model.finally([=] { require(state->calls == 1, "the callback was not called once"); });
  }));
}

// One thread drops a handle while another one checks whether its own handle is the only one. Both
// work like std::shared_ptr, whose check orders nothing.
struct Shared {
  Work work{1};
  Atomic<int> handles{2}, calls{0};
};

TEST(ExploredCompletion, TheOnlyHandleBeginsAnew) {
  expect_none(explore([](Model& model) {
    auto state = std::make_shared<Shared>();
    name(&state->handles, "handles");
    model.thread("finisher", [=] {
      finish(state->work, Error(ErrorCode::timeout, "late"));
      state->handles.fetch_sub(1, std::memory_order_acq_rel);
    });
    model.thread("program", [=] {
      then(state->work, [=](const std::exception_ptr&) { ++state->calls; });
      wait(state->work);
      while (state->handles.load(std::memory_order_relaxed) != 1) Explored::pause();
      require(state->work.unseen_error() == nullptr, "a callback was told");
      state->work.reuse(1);
      require(!state->work.done(), "it is done before it has begun");
      finish(state->work, std::nullopt);
      require(!state->work.see_error(), "the error of the last time is there again");
      require(state->calls == 1, "the callback was not called once");
    });
  }));
}

// Either the engine's handle or the program's may be dropped first. A callback drops the program's.
TEST(ExploredCompletion, ACallbackDropsTheLastHandle) {
  expect_none(explore([](Model& model) {
    struct State {
      std::shared_ptr<Work> of_engine = std::make_shared<Work>(1), of_program = of_engine;
    };
    auto state = std::make_shared<State>();
    model.thread("finisher", [=] {
      finish(*state->of_engine, std::nullopt);
      state->of_engine.reset();
    });
    model.thread("program", [=] {
      then(*state->of_program, [=](const std::exception_ptr&) { state->of_program.reset(); });
    });
    model.finally([=] { require(!state->of_program, "the callback was not called"); });
  }));
}

}  // namespace
}  // namespace tutti::explore
