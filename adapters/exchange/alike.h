#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tutti/core/communicator.h"

namespace tutti {

/// The ranks compare what must be equal on all of them before anything depends on it. These calls
/// are collective and blocking. If ranks differ, every rank throws the same Error(mismatch). Its
/// one line names the first rank that differs from rank 0, and says what each of the two has.

/// Compares settings of the form "name=value". All ranks have the same names in the same order.
/// `whose` names the owner of the settings in the Error's text.
void check_settings_alike(Communicator& comm, std::span<const std::string> settings,
                          std::string_view whose = "distributed()");

/// Compares the tensors of a model: their number, order, names, shapes, types and strides. `kind`
/// is the word for one of them in the Error's text.
void check_tensors_alike(Communicator& comm, std::span<const NamedTensor> tensors,
                         std::string_view kind = "parameter");

/// Compares the contents of tensors in host memory bit by bit. The Error names the first tensor
/// that differs.
void check_values_alike(Communicator& comm, std::span<const NamedTensor> tensors);

}  // namespace tutti
