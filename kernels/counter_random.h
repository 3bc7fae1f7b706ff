#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tutti {

/// Identifies a sequence of random numbers. Equal keys give equal numbers on every machine, device
/// and rank. An element's number does not depend on how many other elements are drawn. The
/// generator is Philox4x32-10 (Salmon et al. 2011) of (seed, purpose, step, element).
struct RandomKey {
  uint64_t seed = 0;     // seed of the whole program
  uint32_t purpose = 0;  // see random_purpose()
  uint32_t step = 0;     // training step, or another count
};

/// Returns a number for a text such as "dropout block1.drop" (FNV-1a hash).
uint32_t random_purpose(std::string_view text);

/// Returns 32 random bits for each of elements 4 * block to 4 * block + 3.
std::array<uint32_t, 4> random_block(const RandomKey& key, uint64_t block);

/// Fills `values` with uniform numbers in [0, 1), for elements `first` onward. They have 24 bits,
/// so that f32 represents them exactly.
void fill_random_units(const RandomKey& key, uint64_t first, std::span<float> values);
/// Fills `values` with standard normal numbers. Each pair of elements is computed from two 32-bit
/// random words (Box and Muller 1958).
void fill_random_normals(const RandomKey& key, uint64_t first, std::span<float> values);
/// Returns the numbers 0 to count - 1 in random order (Fisher-Yates shuffle). Random block i
/// decides swap i.
std::vector<int64_t> random_order(const RandomKey& key, int64_t count);

}  // namespace tutti
