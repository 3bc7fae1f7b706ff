#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace tutti {

/// Extents of a dense row-major tensor, slowest first. Without extents it is a scalar, which has
/// one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) {
    // This shortcut serves vectors, because each call that takes a vector makes its shape.
    if (extents.size() == 1 && *extents.begin() >= 0) {
      rank_ = 1;
      count_ = in_place_[0] = *extents.begin();
      return;
    }
    *this = Shape(std::span<const int64_t>(extents.begin(), extents.size()));
  }
  /// Throws Error(invalid_argument) for a negative extent, or if the number of elements exceeds 64
  /// bits.
  explicit Shape(std::span<const int64_t> extents);
  /// Like the constructor that takes a span.
  explicit Shape(const std::vector<int64_t>& extents) : Shape(std::span<const int64_t>(extents)) {}

  int rank() const { return rank_; }  // number of dimensions, 0 for a scalar
  /// Extent of dimension i.
  int64_t operator[](int i) const { return extents()[static_cast<size_t>(i)]; }
  /// Returns the extents of all dimensions.
  std::span<const int64_t> extents() const {
    return {rank_ <= kInPlace ? in_place_.data() : more_.data(), static_cast<size_t>(rank_)};
  }
  /// Returns the number of elements.
  int64_t count() const { return count_; }
  /// Returns the number of elements per index of the first dimension (1 for a scalar).
  int64_t row_count() const;
  /// Returns this shape with another first extent.
  Shape with_rows(int64_t rows) const;
  /// Returns, for each dimension in row-major order, the elements from one index to the next.
  std::vector<int64_t> row_major_strides() const;
  /// Returns whether `strides` (in elements, one per dimension) are row-major. The stride of a
  /// dimension with one index is never used, so it may be anything; so may all strides of an empty
  /// tensor.
  bool is_row_major(std::span<const int64_t> strides) const;
  /// Returns whether the strides reach every element of a block of count() elements, in any order.
  bool is_dense(std::span<const int64_t> strides) const;
  /// Returns for example "[6,1,5,5]", or "[]" for a scalar.
  std::string to_string() const;
  /// Compares all extents.
  bool operator==(const Shape& other) const {
    return rank_ == other.rank_ &&
           std::equal(extents().begin(), extents().end(), other.extents().begin());
  }

 private:
  // Shapes are created and copied in every call, so ordinary ones do not allocate.
  static constexpr int kInPlace = 5;
  int rank_ = 0;
  int64_t count_ = 1;
  std::array<int64_t, kInPlace> in_place_{};
  std::vector<int64_t> more_;  // all extents of a shape that does not fit in place
};

}  // namespace tutti
