#pragma once

#include <cstdint>
#include <initializer_list>

namespace tutti::simulation {

/// A stream of random numbers (splitmix64). Streams of one seed with different names are
/// independent: drawing more from one does not change another.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t name = 0) : state_(mix(seed ^ mix(name + kGolden))) {}
  uint64_t next() { return mix(state_ += kGolden); }
  /// Returns a number in [0, bound); bound > 0.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
  /// Returns a number in [first, last].
  int64_t between(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(below(static_cast<uint64_t>(last - first) + 1));
  }
  /// Returns true in `of_thousand` of 1000 draws.
  bool chance(uint64_t of_thousand) { return below(1000) < of_thousand; }

  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  uint64_t state_;
};

template <class T>
T one_of(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.below(values.size())];
}

}  // namespace tutti::simulation
