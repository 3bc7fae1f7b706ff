// This file is compiled once per instruction set by foreach_target.h. Each call of
// copy_past_caches() chooses the instruction set at run time.
#include "tutti/kernels/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tutti/kernels/copy.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
//
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tutti/kernels/copy.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Copies whole cache lines; `output` is aligned to a line.
void StreamLines(std::byte* output, const std::byte* input, size_t bytes) {
  const hn::CappedTag<uint8_t, 64> d;
  const auto* from = reinterpret_cast<const uint8_t*>(input);
  auto* to = reinterpret_cast<uint8_t*>(output);
  for (size_t i = 0; i < bytes; i += hn::Lanes(d)) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  hwy::FlushStream();
}

}  // namespace tutti::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti {

HWY_EXPORT(StreamLines);

void copy_past_caches(std::byte* output, const std::byte* input, size_t bytes) {
  constexpr size_t kLine = 64;
  const size_t to_line = (kLine - reinterpret_cast<uintptr_t>(output) % kLine) % kLine;
  const size_t head = std::min(bytes, to_line), lines = (bytes - head) / kLine * kLine;
  const size_t tail = bytes - head - lines;
  if (head > 0) std::memcpy(output, input, head);
  if (lines > 0) HWY_DYNAMIC_DISPATCH(StreamLines)(output + head, input + head, lines);
  if (tail > 0) std::memcpy(output + head + lines, input + head + lines, tail);
}

}  // namespace tutti
#endif
