#include <algorithm>
#include <cstring>

#include "tutti/kernels/convert.h"

namespace tutti {

namespace {

// Calls f(piece, first, last) for each piece that overlaps the bucket's range [begin, end), where
// [first, last) is the overlap.
template <class Function>
void for_each_share(std::span<const Piece> pieces, int64_t begin, int64_t end, Function&& f) {
  auto piece = std::partition_point(pieces.begin(), pieces.end(), [begin](const Piece& p) {
    return p.offset + p.count <= begin;
  });
  for (; piece != pieces.end() && piece->offset < end; ++piece)
    f(*piece, std::max(begin, piece->offset), std::min(end, piece->offset + piece->count));
}

std::byte* element(const Piece& piece, int64_t bucket_index) {
  return piece.data + (bucket_index - piece.offset) * size_of(piece.dtype);
}

}  // namespace

void pack(std::span<const Piece> pieces, DataType bucket_dtype, std::byte* bucket, int64_t begin,
          int64_t end, Scale scale) {
  const int64_t width = size_of(bucket_dtype);
  int64_t done = begin;
  const auto zero_until = [&](int64_t next) {
    if (next > done)
      std::memset(bucket + (done - begin) * width, 0, static_cast<size_t>((next - done) * width));
  };
  for_each_share(pieces, begin, end, [&](const Piece& piece, int64_t first, int64_t last) {
    zero_until(first);
    cast(piece.dtype, element(piece, first), bucket_dtype, bucket + (first - begin) * width,
         last - first, scale);
    done = last;
  });
  zero_until(end);
}

void unpack(std::span<const Piece> pieces, DataType bucket_dtype, const std::byte* bucket,
            int64_t begin, int64_t end, Scale scale) {
  for_each_share(pieces, begin, end, [&](const Piece& piece, int64_t first, int64_t last) {
    cast(bucket_dtype, bucket + (first - begin) * size_of(bucket_dtype), piece.dtype,
         element(piece, first), last - first, scale);
  });
}

}  // namespace tutti
