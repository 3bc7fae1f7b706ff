#include "tests/explore/explorer.h"

#include "tests/explore/run/choices.h"
#include "tests/explore/run/run.h"

namespace tutti::explore {

Bounds daily() {
#ifdef TUTTI_EVERY_DAY
  return {.cost = 2};
#else
  return {.cost = 3, .runs = 200'000'000};
#endif
}

// The cheapest runs come first, so that a failure is shown by the simplest run that has it.
Outcome explore(const std::function<void(Model&)>& build, Bounds bounds) {
  Outcome outcome;
  for (int cost = 0; cost <= bounds.cost; ++cost) {
    Choices choices(cost);
    Run run(choices, bounds);
    do {
      if (outcome.runs == bounds.runs) return outcome;
      ++outcome.runs;
      if (!run.make(build)) {
        outcome.failure = run.failure();
        outcome.trace = run.trace();
        return outcome;
      }
    } while (choices.advance());
  }
  outcome.complete = true;
  return outcome;
}

void require(bool holds, const char* text) {
  if (!holds && Run::current() != nullptr) Run::current()->fail(text);
}

void name(const void* object, const char* name) {
  if (Run::current() != nullptr) Run::current()->name(object, name);
}

}  // namespace tutti::explore
