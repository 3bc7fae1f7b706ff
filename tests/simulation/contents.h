#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/simulation/case.h"

namespace tutti::simulation {

/// Returns element `index` of the input of `rank`: a small integer. All sums, products and averages
/// of up to five ranks are exact in every type that `op` allows, in any order.
int64_t value_of(const Operation& operation, int rank, int64_t index);

/// Writes `value` as one element.
void append(std::vector<std::byte>& bytes, DataType dtype, int64_t value);

/// Returns the input of `rank`: `operation.count()` elements.
std::vector<std::byte> fill_input(const Operation& operation, int rank);

/// The byte that fills the program's output memory before the operation. It differs from every
/// result.
inline constexpr std::byte kUntouched{0xa5};

}  // namespace tutti::simulation
