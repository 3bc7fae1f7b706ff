#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/simulation/case.h"

namespace tutti::simulation {

/// A small whole number: element `index` of what `rank` hands in. All sums, products and averages
/// of up to five ranks are exact in every type that may be reduced by `op`, in whatever order.
int64_t value_of(const Operation& operation, int rank, int64_t index);

/// Writes `value` as one element.
void append(std::vector<std::byte>& bytes, DataType dtype, int64_t value);

/// Makes what `rank` hands in: `operation.count()` elements.
std::vector<std::byte> fill_input(const Operation& operation, int rank);

/// The program's output memory holds this before; it differs from every result.
inline constexpr std::byte kUntouched{0xa5};

}  // namespace tutti::simulation
