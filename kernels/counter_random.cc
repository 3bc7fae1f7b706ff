#include "tutti/kernels/counter_random.h"

#include <Random123/philox.h>

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace tutti {

namespace {

// Calls use(i, words, index) for each element first + i. `words` are the four random numbers of the
// element's block, and words[index] is the element's own.
template <class Use>
void for_each_element(const RandomKey& key, uint64_t first, size_t count, Use use) {
  std::array<uint32_t, 4> words{};
  for (size_t i = 0; i < count; ++i) {
    const uint64_t element = first + i;
    if (i == 0 || element % 4 == 0) words = random_block(key, element / 4);
    use(i, words, element % 4);
  }
}

}  // namespace

uint32_t random_purpose(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return hash;
}

std::array<uint32_t, 4> random_block(const RandomKey& key, uint64_t block) {
  const r123::Philox4x32::ctr_type counter = {
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), key.step, key.purpose}};
  const r123::Philox4x32::key_type seed = {
      {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)}};
  const auto words = r123::Philox4x32()(counter, seed);
  return {words[0], words[1], words[2], words[3]};
}

void fill_random_units(const RandomKey& key, uint64_t first, std::span<float> values) {
  for_each_element(key, first, values.size(), [&](size_t i, const auto& words, size_t place) {
    values[i] = static_cast<float>(words[place] >> 8) * 0x1p-24f;
  });
}

void fill_random_normals(const RandomKey& key, uint64_t first, std::span<float> values) {
  for_each_element(key, first, values.size(), [&](size_t i, const auto& words, size_t place) {
    const size_t pair = place / 2 * 2;
    // The argument of the logarithm is in (0, 1], so that the result is finite.
    const double radius = std::sqrt(-2 * std::log((words[pair] + 1.0) * 0x1p-32));
    const double angle = 2 * std::numbers::pi * (words[pair + 1] * 0x1p-32);
    values[i] = static_cast<float>(radius * (place == pair ? std::cos(angle) : std::sin(angle)));
  });
}

std::vector<int64_t> random_order(const RandomKey& key, int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = count - 1; i > 0; --i) {
    // Each swap uses 64 bits, so the bias of the remainder is far too small to be observed.
    const auto words = random_block(key, static_cast<uint64_t>(i));
    const uint64_t bits = uint64_t{words[0]} << 32 | words[1];
    std::swap(order[static_cast<size_t>(i)],
              order[static_cast<size_t>(bits % static_cast<uint64_t>(i + 1))]);
  }
  return order;
}

}  // namespace tutti
