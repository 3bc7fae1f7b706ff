#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tests/simulation/life/life_case.h"
#include "tests/simulation/random.h"

namespace tutti::simulation {

namespace {

double fraction(Random& random) { return static_cast<double>(random.below(1000)) / 1000; }

LifeStep draw_step(Random& random, int size) {
  LifeStep step;
  switch (random.below(8)) {
    case 0:
    case 1:
    case 2:
      step.kind = LifeStep::Kind::split;
      for (int rank = 0; rank < size; ++rank)
        step.colors.push_back(random.chance(150) ? -1 : static_cast<int>(random.below(2)));
      break;
    case 3:
      step.kind = LifeStep::Kind::shrink;
      break;
    case 4:
    case 5:
      step.kind = LifeStep::Kind::renew;
      break;
    default:
      step.seconds = one_of(random, {0.001, 0.05, 0.5}) * fraction(random);
  }
  return step;
}

LifeFault draw_fault(Random& random, const LifeCase& into) {
  LifeFault fault;
  const auto kind = random.below(100);
  fault.kind = kind < 70   ? LifeFault::Kind::kill
               : kind < 82 ? LifeFault::Kind::stop
               : kind < 90 ? LifeFault::Kind::fail_to_connect
               : kind < 97 ? LifeFault::Kind::slow_store
                           : LifeFault::Kind::store_ends;
  fault.rank = static_cast<int>(random.below(static_cast<uint64_t>(into.size)));
  const auto when = random.below(10);
  if (!into.faults.empty() && when < 6) {
    fault.when = LifeFault::When::after;
    fault.at = one_of(random, {0.001, 0.02, 0.3, 2.0}) * fraction(random);
  } else if (when < 8) {
    fault.when = LifeFault::When::calls;
    fault.calls = static_cast<int>(1 + random.below(random.chance(500) ? 30 : 150));
  } else {
    fault.at = (into.spread + 20 * into.latency * static_cast<double>(1 + into.steps.size())) * 2 *
               fraction(random);
  }
  if (fault.kind == LifeFault::Kind::stop)
    fault.seconds = one_of(random, {0.05, 0.5, 4.0, 12.0}) * fraction(random);
  if (fault.kind == LifeFault::Kind::slow_store)
    fault.seconds = one_of(random, {0.01, 0.2, 1.0}) * fraction(random);
  return fault;
}

}  // namespace

LifeCase draw_life(uint64_t seed) {
  Random random(seed, 41);
  LifeCase drawn;
  drawn.salt = random.next();
  drawn.size = static_cast<int>(random.between(2, 5));
  drawn.latency = one_of(random, {5e-6, 50e-6, 500e-6, 5e-3});
  drawn.longest = drawn.latency * one_of(random, {2.0, 10.0, 40.0});
  drawn.polls = random.chance(200);
  drawn.spread = one_of(random, {0.0, 0.0005, 0.05, 2.0});
  drawn.hears = one_of(random, {0.0002, 0.01, 0.4});
  drawn.slice = one_of(random, {0.0, 0.02, 0.2});
  drawn.split_meets = random.chance(300);
  drawn.starts_again = random.chance(450);
  drawn.writes_deaths = drawn.starts_again || random.chance(850);
  drawn.record_delay = one_of(random, {0.0005, 0.02, 0.2});
  drawn.peer_timeout = one_of(random, {1.0, 2.0});
  const auto steps = random.between(1, 7);
  for (int64_t i = 0; i < steps; ++i) drawn.steps.push_back(draw_step(random, drawn.size));
  if (random.chance(250)) return drawn;
  const auto faults = random.between(1, 3);
  for (int64_t i = 0; i < faults; ++i) drawn.faults.push_back(draw_fault(random, drawn));
  return drawn;
}

std::string to_text(const LifeCase& from) {
  std::string text = fmt::format(
      "world size={} latency={:g} longest={:g} polls={:d} spread={:g} hears={:g} slice={:g} "
      "split_meets={:d} starts_again={:d} writes_deaths={:d} record_delay={:g} peer_timeout={:g}\n",
      from.size, from.latency, from.longest, from.polls, from.spread, from.hears, from.slice,
      from.split_meets, from.starts_again, from.writes_deaths, from.record_delay,
      from.peer_timeout);
  constexpr const char* kSteps[] = {"work", "split", "shrink", "renew"};
  constexpr const char* kFaults[] = {"kill", "stop", "fail_to_connect", "slow_store", "store_ends"};
  constexpr const char* kWhen[] = {"at", "calls", "after"};
  for (const auto& step : from.steps)
    text += fmt::format("step {} seconds={:g} colors={}\n", kSteps[static_cast<int>(step.kind)],
                        step.seconds, fmt::join(step.colors, "/"));
  for (const auto& fault : from.faults)
    text += fmt::format("fault {} {} rank={} at={:g} calls={} seconds={:g}\n",
                        kFaults[static_cast<int>(fault.kind)], kWhen[static_cast<int>(fault.when)],
                        fault.rank, fault.at, fault.calls, fault.seconds);
  return text;
}

}  // namespace tutti::simulation
