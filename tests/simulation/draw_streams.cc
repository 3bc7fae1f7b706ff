// Turns a drawn case into one of the bytes tier, with a random stream of its own.

#include <algorithm>
#include <set>
#include <string>

#include "tests/simulation/draw.h"
#include "tests/simulation/random.h"

namespace tutti::simulation {

void make_some_long(Case& drawn, Random& random, int64_t longest) {
  std::set<std::string> names;
  for (const auto& scripts : drawn.ranks)
    for (const auto& script : scripts)
      for (const auto& action : script)
        for (const auto& operation : action.operations) names.insert(operation.name);
  std::set<std::string> long_ones;
  for (const auto& name : names)
    if (random.chance(200)) long_ones.insert(name);
  const auto factor = static_cast<int64_t>(uint64_t{4} << random.below(7));
  for (auto& scripts : drawn.ranks)
    for (auto& script : scripts)
      for (auto& action : script)
        for (auto& operation : action.operations) {
          if (!long_ones.contains(operation.name)) continue;
          if (operation.bytes() * factor > longest) continue;
          operation.rows *= factor;
          for (auto& rows : operation.splits) rows *= factor;
        }
}

void draw_streams(Case& drawn, uint64_t seed) {
  constexpr uint64_t kStreams = 5;
  Random random(seed, kStreams);
  auto& world = drawn.world;
  world.over_streams = true;
  // The backend over streams cancels immediately, gives the reason of a failure, runs on the rank's
  // own threads, and does not serve blocking calls.
  world.cannot_cancel = world.fails_before_reason = false;
  world.works_elsewhere = world.serves_blocking = false;
  if (random.chance(250)) world.bandwidth = int64_t{1} << random.between(12, 15);
  // A stream passes at most one buffer of bytes in two latencies.
  const Micros least = 2 * world.latency * (1 << 14) / kSecond;
  if (random.chance(400))
    world.buffer = std::max<int64_t>(int64_t{1} << random.between(5, 13), least);
  if (random.chance(500)) world.splits = random.between(1, 1000);
  if (random.chance(600)) world.credit = int64_t{512} << random.below(5);
  if (random.chance(500)) world.segment_bytes = int64_t{32} << random.below(8);
  // Long tensors on slow links keep the links busy for longer than a rank may be silent.
  if (!random.chance(world.bandwidth > 0 ? 700 : 300)) return;
  // Some tensors are long enough to wait at their sender, to be cut, and to keep a slow link busy.
  // Each small piece takes an event and each segment a step, so both must be few.
  world.segment_bytes = std::max<int64_t>(world.segment_bytes, 256);
  world.splits /= 4;
  world.buffer = std::max<int64_t>(world.buffer, 1024);
  make_some_long(drawn, random, 1 << 14);
}

}  // namespace tutti::simulation
