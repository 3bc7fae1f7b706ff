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

}  // namespace tutti::test
