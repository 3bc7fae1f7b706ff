#include "tests/support/bulk.h"

namespace tutti::test {
namespace {

uint64_t begin_of(uint64_t seed) { return seed * 0x9e3779b97f4a7c15u + 1; }
uint64_t next(uint64_t state) { return state * 6364136223846793005u + 1442695040888963407u; }

}  // namespace

void fill_pattern(std::byte* bytes, size_t count, uint64_t seed) {
  uint64_t state = begin_of(seed);
  for (size_t i = 0; i < count; ++i) {
    state = next(state);
    bytes[i] = static_cast<std::byte>(state >> 56);
  }
}

void fill_from_four(std::byte* elements, size_t count, size_t size, const std::byte* four,
                    uint64_t seed) {
  uint64_t state = begin_of(seed);
  for (size_t i = 0; i < count; ++i) {
    state = next(state);
    const std::byte* one = four + (state >> 62) * size;
    for (size_t byte = 0; byte < size; ++byte) elements[i * size + byte] = one[byte];
  }
}

void fill_terms(std::span<float> terms, uint64_t seed) {
  uint64_t state = begin_of(seed);
  for (float& term : terms) {
    state = next(state);
    const auto fraction = static_cast<float>(static_cast<int32_t>(state >> 32)) / 0x1p31f;
    term = fraction * static_cast<float>(1 << (state >> 20 & 0xfff) % 12);
  }
}

void fill_cycle(void* elements, int64_t count, size_t size, std::span<const std::byte> cycle,
                int64_t first) {
  if (count == 0) return;  // the cycle may be empty then
  auto* to = static_cast<std::byte*>(elements);
  size_t left = static_cast<size_t>(count) * size;
  size_t at = static_cast<size_t>(first) * size % cycle.size();
  for (size_t bytes; left > 0; to += bytes, left -= bytes, at = 0) {
    bytes = std::min(left, cycle.size() - at);
    std::memcpy(to, cycle.data() + at, bytes);
  }
}

}  // namespace tutti::test
