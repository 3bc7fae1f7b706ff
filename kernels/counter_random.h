#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tutti {

/// What random numbers are for. Equal keys give equal numbers on every machine, device and rank,
/// and the number of an element does not depend on how many others are drawn: Philox4x32-10 (Salmon
/// et al. 2011) of (seed, purpose, step, element).
struct RandomKey {
  uint64_t seed = 0;     // of the whole program
  uint32_t purpose = 0;  // see random_purpose()
  uint32_t step = 0;     // of training, or another count
};

/// A number for a text such as "dropout block1.drop" (FNV-1a).
uint32_t random_purpose(std::string_view text);

/// 32 random bits for each of elements 4 * block to 4 * block + 3.
std::array<uint32_t, 4> random_block(const RandomKey& key, uint64_t block);

/// Uniform in [0, 1), of 24 bits, so that f32 holds it: for elements `first` and on.
void fill_random_units(const RandomKey& key, uint64_t first, std::span<float> values);
/// Standard normal, by pairs (Box and Muller 1958), from 32 bits each.
void fill_random_normals(const RandomKey& key, uint64_t first, std::span<float> values);
/// The numbers 0 to count - 1 in random order (Fisher and Yates; element i decides swap i).
std::vector<int64_t> random_order(const RandomKey& key, int64_t count);

}  // namespace tutti
