#include <algorithm>
#include <utility>
#include <vector>

#include "tests/simulation/draw.h"

namespace tutti::simulation {

namespace {

constexpr int kDeparting = 2, kInquiring = 3, kClosing = 4, kBroken = 5;  // phases

Fault draw_fault(Fault::Kind kind, const World& world, Random& random) {
  using Kind = Fault::Kind;
  Fault fault;
  fault.kind = kind;
  const auto size = static_cast<uint64_t>(world.size);
  fault.rank = static_cast<int>(random.below(size));
  fault.peer =
      static_cast<int>((static_cast<uint64_t>(fault.rank) + 1 + random.below(size - 1)) % size);
  // A third of the faults wait for a moment that few other times hit: a rank leaves, inquires into
  // a lost peer, closes or breaks.
  const auto when = random.below(3);
  if (when == 0) {
    fault.phase = one_of(random, {kDeparting, kDeparting, kInquiring, kClosing, kClosing, kBroken});
    fault.at = random.chance(400) ? 0 : random.between(0, 3 * world.latency + 1000);
  } else if (when == 1) {
    fault.event = random.between(1, 80);
  } else {
    fault.at = random.between(0, 40 * world.latency + 2000);
  }
  fault.length = one_of<Micros>(random, {world.latency * 3, kSecond / 5, world.peer_timeout * 2});
  switch (kind) {
    case Kind::delay:
      fault.amount = one_of<int64_t>(random, {world.latency, 10 * world.latency, kSecond / 4});
      break;
    case Kind::slow_link:
      fault.amount = one_of<int64_t>(random, {1 << 12, 1 << 14, 1 << 17});
      break;
    case Kind::damage:
      fault.amount = random.between(0, 40);
      break;
    case Kind::throws_in_start:
      fault.peer = static_cast<int>(random.below(2));
      [[fallthrough]];
    case Kind::operation_fails:
    case Kind::throws_in_observer:
      fault.amount = random.between(1, 12);
      if (fault.phase < 0 && random.chance(800)) {
        fault.at = 0;
        fault.event = -1;
      }
      break;
    case Kind::store_slow:
    case Kind::store_gone:
    case Kind::launcher_slow:
      if (random.chance(700)) {
        fault.at = 0;
        fault.event = fault.phase = -1;
      }
      break;
    case Kind::abandons:
      fault.event = fault.phase = -1;
      fault.at = random.between(0, 3 * world.latency + 1000);
      break;
    case Kind::record_late:
      fault.length = one_of<Micros>(random, {1000, kSecond / 5, kSecond});
      break;
    default:
      break;
  }
  return fault;
}

// Returns the rank whose program closes because of an error, or -1.
int rank_that_gives_up(const Case& from) {
  for (size_t rank = 0; rank < from.ranks.size(); ++rank)
    for (const auto& action : from.ranks[rank].front())
      if (action.kind == Action::Kind::close && !action.text.empty()) return static_cast<int>(rank);
  return -1;
}

// Adds a fault that hits a rank just when another rank closes or has closed.
void draw_trouble_at_an_end(Case& into, Random& random) {
  using Kind = Fault::Kind;
  const int leaver = rank_that_gives_up(into);
  if (leaver >= 0 && random.chance(800)) {
    Fault slow = draw_fault(Kind::launcher_slow, into.world, random);
    slow.rank = leaver;
    slow.length = kSecond / 2;
    slow.at = 0;
    slow.event = slow.phase = -1;
    into.faults.push_back(slow);
  }
  // The end of a link breaks a third rank, which then tells the leaving one.
  const auto kind = into.world.size > 2 && random.chance(500)
                        ? one_of(random, {Kind::kill, Kind::kill, Kind::reset})
                        : one_of(random, {Kind::operation_fails, Kind::throws_in_start,
                                          Kind::throws_in_observer, Kind::throws_in_observer});
  Fault fault = draw_fault(kind, into.world, random);
  const bool is_late = random.chance(300);
  fault.event = -1;
  fault.phase = random.chance(600) ? kClosing : kDeparting;
  fault.at = is_late ? random.between(0, 2 * into.world.latency) : 0;
  if (fault.rank == leaver) std::swap(fault.rank, fault.peer);
  into.faults.push_back(fault);
}

}  // namespace

void draw_faults(Case& into, Random& random) {
  if (random.chance(350)) return;
  // Each kind is switched on or off. A kind that is on comes once or twice.
  std::vector<Fault::Kind> on;
  for (int kind = 0; kind < kFaultKinds; ++kind)
    // A rank that gives up its communicator gets no other fault.
    if (random.chance(kind == static_cast<int>(Fault::Kind::abandons) ? 25 : 120))
      on.push_back(static_cast<Fault::Kind>(kind));
  if (on.empty()) on.push_back(one_of(random, {Fault::Kind::kill, Fault::Kind::stop}));
  for (const auto kind : on) {
    into.faults.push_back(draw_fault(kind, into.world, random));
    if (random.chance(150)) into.faults.push_back(draw_fault(kind, into.world, random));
    // A fault of a death's record needs a death.
    const bool is_record = kind == Fault::Kind::record_late ||
                           kind == Fault::Kind::record_missing ||
                           kind == Fault::Kind::record_of_other;
    // A rank reads the store after a death.
    const bool is_of_store = kind == Fault::Kind::store_slow || kind == Fault::Kind::store_gone;
    if (!is_record && !(is_of_store && random.chance(500))) continue;
    Fault death = draw_fault(Fault::Kind::kill, into.world, random);
    death.rank = into.faults.back().rank;
    if (is_of_store) death.rank = (death.rank + 1) % into.world.size;
    into.faults.push_back(death);
  }
  if (random.chance(350)) draw_trouble_at_an_end(into, random);
  into.world.heals_at = random.between(1, 100) * into.world.latency +
                        one_of<Micros>(random, {3000, kSecond, 2 * kSecond});
  // Operations over streams never fail by themselves.
  for (auto& fault : into.faults)
    if (into.world.over_streams && fault.kind == Fault::Kind::operation_fails)
      fault.kind = Fault::Kind::throws_in_start;
  // Ranks reach a phase late, so the world heals later.
  if (std::ranges::any_of(into.faults, [](const Fault& fault) { return fault.phase >= 0; }))
    into.world.heals_at += 100 * into.world.latency + random.between(0, 3) * kSecond;
}

}  // namespace tutti::simulation
