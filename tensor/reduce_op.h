#pragma once

#include <cstdint>
#include <string_view>

#include "tutti/tensor/packing.h"

namespace tutti {

/// How elements of several ranks become one. The numbers are part of the wire format and the C ABI.
enum class ReduceOp : uint8_t {
  sum = 0,
  average = 1,
  min = 2,
  max = 3,
  product = 4,
  band = 5,
  bor = 6,
  bxor = 7
};
/// Number of ops.
inline constexpr int kReduceOpCount = 8;

/// Returns for example "sum".
constexpr std::string_view to_string(ReduceOp op) noexcept {
  constexpr std::string_view kNames[kReduceOpCount] = {"sum",     "average", "min", "max",
                                                       "product", "band",    "bor", "bxor"};
  return kNames[static_cast<int>(op)];
}

}  // namespace tutti
