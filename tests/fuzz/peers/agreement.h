#pragma once

#include <vector>

#include "tests/fuzz/harness.h"
#include "tutti/core/agreement/coordinator.h"

namespace tutti::fuzz {

/// The number of ranks in the agreement's harnesses, and their settings. The settings are small, so
/// that a short input can lock plans and make the cache forget names.
inline constexpr int kAgreeing = 3;
Options agreement_options();

/// Thrown for a tensor that no rank of these harnesses has: it is longer than 16 Mi elements.
struct NotAskedFor : DamagedMessage {
  NotAskedFor() : DamagedMessage("this rank has no such tensor") {}
};

/// Reads an `answers` message and does all that a rank does before it uses its own tensors.
void read_answers(std::string_view message, NameCache& cache, const Options& options);

Signature allreduce_signature(int64_t elements);

}  // namespace tutti::fuzz
