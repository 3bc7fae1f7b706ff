#include "tutti/tensor/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"

namespace tutti {

Shape::Shape(std::span<const int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  if (rank_ <= kInPlace)
    std::copy(extents.begin(), extents.end(), in_place_.begin());
  else
    more_.assign(extents.begin(), extents.end());
  bool empty = false;
  for (const int64_t extent : extents) {
    if (extent < 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("shape {} has a negative extent", to_string()));
    empty |= extent == 0;
    // Extents of 0 are left out of the product, so that a part of an empty shape (its rows) cannot
    // overflow either.
    if (extent != 0 && __builtin_mul_overflow(count_, extent, &count_))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("shape {} has more than 2^63 elements", to_string()));
  }
  if (empty) count_ = 0;
}

int64_t Shape::row_count() const {
  int64_t count = 1;
  for (int i = 1; i < rank_; ++i) count *= (*this)[i];
  return count;
}

Shape Shape::with_rows(int64_t rows) const {
  const auto before = extents();
  std::vector<int64_t> after(before.begin(), before.end());
  if (after.empty()) after.push_back(rows);
  after[0] = rows;
  return Shape(after);
}

std::vector<int64_t> Shape::row_major_strides() const {
  std::vector<int64_t> strides(static_cast<size_t>(rank_), 1);
  for (auto at = strides.size(); at > 1; --at)
    strides[at - 2] = strides[at - 1] * extents()[at - 1];
  return strides;
}

bool Shape::is_row_major(std::span<const int64_t> strides) const {
  if (static_cast<int>(strides.size()) != rank_) return false;
  if (count_ == 0) return true;
  int64_t expected = 1;
  for (auto at = strides.size(); at > 0; --at) {
    const int64_t extent = extents()[at - 1];
    if (extent != 1 && strides[at - 1] != expected) return false;
    expected *= extent;
  }
  return true;
}

bool Shape::is_dense(std::span<const int64_t> strides) const {
  if (static_cast<int>(strides.size()) != rank_) return false;
  if (count_ == 0) return true;
  // Sorted by stride, the dimensions must be those of a row-major tensor.
  std::vector<std::pair<int64_t, int64_t>> by_stride;
  for (size_t i = 0; i < strides.size(); ++i)
    if (extents()[i] != 1) by_stride.emplace_back(strides[i], extents()[i]);
  std::sort(by_stride.begin(), by_stride.end());
  int64_t expected = 1;
  for (const auto& [stride, extent] : by_stride) {
    if (stride != expected) return false;
    expected *= extent;
  }
  return true;
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(extents(), ",")); }

}  // namespace tutti
