#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace tutti {

/// Extents of a dense row-major tensor, slowest first. No extents: a scalar of one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) {
    // The shape of a vector is made with every call that is given one.
    if (extents.size() == 1 && *extents.begin() >= 0) {
      rank_ = 1;
      count_ = in_place_[0] = *extents.begin();
      return;
    }
    *this = Shape(std::span<const int64_t>(extents.begin(), extents.size()));
  }
  /// Throws Error(invalid_argument) for a negative extent or more elements than 64 bits count.
  explicit Shape(std::span<const int64_t> extents);
  /// The same of a vector.
  explicit Shape(const std::vector<int64_t>& extents) : Shape(std::span<const int64_t>(extents)) {}

  int rank() const { return rank_; }  // how many dimensions, 0 for a scalar
  int64_t operator[](int i) const { return extents()[static_cast<size_t>(i)]; }  // of dimension i
  /// Of every dimension.
  std::span<const int64_t> extents() const {
    return {rank_ <= kInPlace ? in_place_.data() : more_.data(), static_cast<size_t>(rank_)};
  }
  /// Number of elements.
  int64_t count() const { return count_; }
  /// Elements per index of the first dimension (1 for a scalar).
  int64_t row_count() const;
  /// The same shape with another first extent.
  Shape with_rows(int64_t rows) const;
  /// Elements from one index to the next, of each dimension in row-major order.
  std::vector<int64_t> row_major_strides() const;
  /// Whether `strides` (in elements, one a dimension) say row-major order. The stride of a
  /// dimension of one index is never used, so it may be anything; so may all of an empty tensor.
  bool is_row_major(std::span<const int64_t> strides) const;
  /// Whether they reach every element of a block of count() elements, in whatever order.
  bool is_dense(std::span<const int64_t> strides) const;
  /// "[6,1,5,5]"; "[]" for a scalar.
  std::string to_string() const;
  /// Of all extents.
  bool operator==(const Shape& other) const {
    return rank_ == other.rank_ &&
           std::equal(extents().begin(), extents().end(), other.extents().begin());
  }

 private:
  // Shapes are made and copied with every call, so ordinary ones need no memory of their own.
  static constexpr int kInPlace = 5;
  int rank_ = 0;
  int64_t count_ = 1;
  std::array<int64_t, kInPlace> in_place_{};
  std::vector<int64_t> more_;  // all extents of a shape that does not fit in place
};

}  // namespace tutti
