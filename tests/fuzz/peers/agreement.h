#pragma once

#include <vector>

#include "tests/fuzz/harness.h"
#include "tutti/core/agreement/coordinator.h"

namespace tutti::fuzz {

/// As many ranks as the agreement's harnesses have, and their settings: small, so that plans lock
/// and numbers are forgotten within a short input.
inline constexpr int kAgreeing = 3;
Options agreement_options();

/// Thrown for a tensor that no rank of these harnesses has: it is longer than 16 Mi elements.
struct NotAskedFor : DamagedMessage {
  NotAskedFor() : DamagedMessage("this rank has no such tensor") {}
};

/// Reads an `answers` message with all that a rank does to it before it looks at its own tensors.
void read_answers(std::string_view message, NameCache& cache, const Options& options);

Signature allreduce_signature(int64_t elements);

}  // namespace tutti::fuzz
