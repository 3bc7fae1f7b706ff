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
    // Zeros are left out, so that no part of an empty shape (its rows) overflows either.
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

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(extents(), ",")); }

}  // namespace tutti
