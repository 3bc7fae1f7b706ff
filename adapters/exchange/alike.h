#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tutti/core/communicator.h"

namespace tutti {

/// Ranks compare what must be equal on all of them before anything depends on it. Collective and
/// blocking; every rank throws the same Error(mismatch), one line that names the first rank that
/// differs from rank 0, what rank 0 has and what that rank has.

/// Settings as "name=value", the same names in the same order; `whose` is what the Error names.
void check_settings_alike(Communicator& comm, std::span<const std::string> settings,
                          std::string_view whose = "distributed()");

/// What a model's tensors are: their number, order, names, shapes, types and strides. `kind` is
/// what the Error calls one of them.
void check_tensors_alike(Communicator& comm, std::span<const NamedTensor> tensors,
                         std::string_view kind = "parameter");

/// Tensors of host memory, to the bit; the Error names the first that differs.
void check_values_alike(Communicator& comm, std::span<const NamedTensor> tensors);

}  // namespace tutti
