// Turns a drawn case into one of the shared tier, with a random stream of its own.

#include <algorithm>

#include "tests/simulation/draw.h"
#include "tests/simulation/random.h"

namespace tutti::simulation {

namespace {

bool allocates(const Script& script) {
  return std::ranges::any_of(
      script, [](const Action& action) { return action.kind == Action::Kind::allocate; });
}

// Gives all ranks, or all but one, memory from the start that their peers reach.
void give_memory(Case& drawn, Random& random) {
  const bool is_given = random.chance(400);
  const int without =
      random.chance(250) ? static_cast<int>(random.between(0, drawn.world.size - 1)) : -1;
  const auto bytes = one_of<Micros>(random, {1 << 12, 1 << 14});
  for (int rank = 0; rank < drawn.world.size; ++rank) {
    auto& script = drawn.ranks[static_cast<size_t>(rank)].front();
    for (auto& action : script)
      if (action.kind == Action::Kind::allocate) action.time = bytes;
    if (is_given && rank != without && !allocates(script))
      script.insert(script.begin(), {Action::Kind::allocate, {}, "", bytes});
  }
}

}  // namespace

void draw_memory(Case& drawn, uint64_t seed) {
  constexpr uint64_t kMemory = 6;
  Random random(seed, kMemory);
  auto& world = drawn.world;
  world.over_streams = world.over_memory = true;
  // The shipped backend cancels immediately, gives the reason of a failure, runs on the rank's own
  // threads, and serves blocking calls.
  world.cannot_cancel = world.fails_before_reason = world.works_elsewhere = false;
  world.serves_blocking = true;
  if (random.chance(700)) world.bandwidth = 0;
  world.chunk_bytes = one_of<int64_t>(random, {64 * world.size, 512, 1024, 4096});
  world.one_shot_bytes =
      one_of<int64_t>(random, {0, 128, world.chunk_bytes / 2, world.chunk_bytes});
  world.in_place_bytes = one_of<int64_t>(random, {96, 256, 1 << 14});
  world.spins = one_of(random, {0, 1, 20});
  if (random.chance(200)) world.lacks_memory = static_cast<int>(random.between(1, world.size - 1));
  if (random.chance(400)) make_some_long(drawn, random, 1 << 13);
  give_memory(drawn, random);
}

}  // namespace tutti::simulation
