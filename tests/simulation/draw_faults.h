#pragma once

#include "tests/simulation/case.h"
#include "tests/simulation/random.h"

namespace tutti::simulation {

/// Adds faults to a case whose world and programs are drawn, or none, and says when the world
/// heals.
void draw_faults(Case& into, Random& random);

}  // namespace tutti::simulation
