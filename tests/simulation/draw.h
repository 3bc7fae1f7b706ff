#pragma once

#include <cstdint>

#include "tests/simulation/case.h"
#include "tests/simulation/random.h"

namespace tutti::simulation {

struct DrawOptions {
  bool without_faults = false;
  int scale = 1;  // 2: twice as many steps and tensors
  Tier tier = Tier::operations;
};

/// The case of a seed. World, program, faults and schedule are drawn from streams of their own, so
/// that what is added to one leaves the others as they are. Each feature and each fault is first on
/// or off for the whole case, and then has a rate ("swarm testing"): a case with few features goes
/// deeper into them than one that has all. Faults end by themselves or when the world heals.
///
/// The programs that are drawn never wait for each other in a circle, so every operation of them
/// must end.
Case draw(uint64_t seed, const DrawOptions& options = {});
/// Makes it one of the bytes tier, or of the shared tier.
void draw_streams(Case& drawn, uint64_t seed);
void draw_memory(Case& drawn, uint64_t seed);
/// Makes a fifth of the names many times as long, up to so many bytes.
void make_some_long(Case& drawn, Random& random, int64_t longest);

/// Adds faults to a case whose world and programs are drawn, or none, and says when the world
/// heals.
void draw_faults(Case& into, Random& random);

}  // namespace tutti::simulation
