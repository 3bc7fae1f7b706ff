#pragma once

#include <cstdint>

#include "tests/simulation/case.h"
#include "tests/simulation/random.h"

namespace tutti::simulation {

struct DrawOptions {
  bool without_faults = false;
  int scale = 1;  // 2: twice the number of steps and tensors
  Tier tier = Tier::operations;
};

/// Returns the case of a seed. World, program, faults and schedule are drawn from separate random
/// streams, so that an addition to one leaves the others as they are. Each feature and each fault
/// is first switched on or off for the whole case, and then gets a rate ("swarm testing"). A case
/// with few features goes deeper into them than a case with all of them. Faults end by themselves
/// or when the world heals.
///
/// The drawn programs never wait for each other in a circle, so every operation of them must end.
Case draw(uint64_t seed, const DrawOptions& options = {});
/// Turn the case into one of the bytes tier, or of the shared tier.
void draw_streams(Case& drawn, uint64_t seed);
void draw_memory(Case& drawn, uint64_t seed);
/// Makes a fifth of the names many times longer, up to `longest` bytes.
void make_some_long(Case& drawn, Random& random, int64_t longest);

/// Adds faults, or none, to a case with a drawn world and programs, and sets when the world heals.
void draw_faults(Case& into, Random& random);

}  // namespace tutti::simulation
