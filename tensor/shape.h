#pragma once

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
  Shape(std::initializer_list<int64_t> extents) : Shape(std::vector<int64_t>(extents)) {}
  /// Throws Error(invalid_argument) for a negative extent or more elements than 64 bits count.
  explicit Shape(std::vector<int64_t> extents);

  int rank() const { return static_cast<int>(extents_.size()); }
  int64_t operator[](int i) const { return extents_[static_cast<size_t>(i)]; }
  std::span<const int64_t> extents() const { return extents_; }
  /// Number of elements.
  int64_t count() const { return count_; }
  /// Elements per index of the first dimension (1 for a scalar).
  int64_t row_count() const;
  /// The same shape with another first extent.
  Shape with_rows(int64_t rows) const;
  /// "[6,1,5,5]"; "[]" for a scalar.
  std::string to_string() const;
  bool operator==(const Shape& other) const { return extents_ == other.extents_; }

 private:
  std::vector<int64_t> extents_;
  int64_t count_ = 1;
};

}  // namespace tutti
