#include "tutti/tensor/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"

namespace tutti {

Shape::Shape(std::vector<int64_t> extents) : extents_(std::move(extents)) {
  bool empty = false;
  for (const int64_t extent : extents_) {
    if (extent < 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("shape {} has a negative extent", to_string()));
    empty |= extent == 0;
    // Zeros are left out, so that no part of an empty shape (its rows) overflows either.
    if (extent != 0 && __builtin_mul_overflow(count_, extent, &count_))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("shape {} has more than 2^63 elements", to_string()));
  }
  if (empty) count_ = 0;
}

int64_t Shape::row_count() const {
  int64_t count = 1;
  for (size_t i = 1; i < extents_.size(); ++i) count *= extents_[i];
  return count;
}

Shape Shape::with_rows(int64_t rows) const {
  auto extents = extents_;
  if (extents.empty()) extents.push_back(rows);
  extents[0] = rows;
  return Shape(std::move(extents));
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(extents_, ",")); }

}  // namespace tutti
