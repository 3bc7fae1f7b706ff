#pragma once

// The work of one block of a pack or unpack kernel. It compiles for the host too.

#include "tutti/kernels/cuda/pack/cast.h"

namespace tutti::cuda {

/// A range of one tensor and its position in a bucket.
struct Stretch {
  std::byte* tensor;  // null: this part of the bucket becomes zero (pack only)
  std::byte* bucket;
  int64_t count;
  DataType dtype;  // type of the tensor
};

inline constexpr int kThreads = 256;
inline constexpr int64_t kTileElements = 16 * kThreads;  // per block

/// The parameters of a launch: at most kMost stretches, and the first tile of each, by which a
/// block finds its work. The parameters are copied with each launch, so buckets of few tensors have
/// a smaller table.
template <int kMost>
struct PackTableOf {
  static constexpr int kMostStretches = kMost;
  Stretch stretches[kMost];
  int32_t first_tile[kMost + 1];  // ascending
  int32_t count;
  DataType bucket_dtype;
  bool unpacks;
  Scaling scaling;
};
using SmallPackTable = PackTableOf<96>;
using LargePackTable = PackTableOf<880>;
static_assert(sizeof(SmallPackTable) < 4096 &&
              sizeof(LargePackTable) < 32'000);  // CUDA allows 32,764

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

TUTTI_DEVICE bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// Casts elements of one type. One step casts as many elements as fit into 16 bytes of the wider
/// type.
template <class To, class From>
TUTTI_DEVICE void cast_tile(const std::byte* from, std::byte* to, int64_t count, double multiplier,
                            int thread, int threads) {
  constexpr int kLanes = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
  const auto* source = reinterpret_cast<const From*>(from);
  auto* target = reinterpret_cast<To*>(to);
  int64_t done = 0;
  if (is_aligned(from, sizeof(From) * kLanes) && is_aligned(to, sizeof(To) * kLanes)) {
    const int64_t packs = count / kLanes;
    for (int64_t i = thread; i < packs; i += threads) {
      const auto in = reinterpret_cast<const Pack<From, kLanes>*>(from)[i];
      Pack<To, kLanes> out;
      for (int lane = 0; lane < kLanes; ++lane)
        out.values[lane] = cast_float<To>(in.values[lane], multiplier);
      reinterpret_cast<Pack<To, kLanes>*>(to)[i] = out;
    }
    done = packs * kLanes;
  }
  for (int64_t i = done + thread; i < count; i += threads)
    target[i] = cast_float<To>(source[i], multiplier);
}

/// Copies bytes, 16 in one step if both addresses are aligned.
TUTTI_DEVICE void copy_tile(const std::byte* from, std::byte* to, int64_t bytes, int thread,
                            int threads) {
  int64_t done = 0;
  const auto copy_words = [&](auto word) {
    using Word = decltype(word);
    const int64_t words = (bytes - done) / static_cast<int64_t>(sizeof(Word));
    const auto* source = reinterpret_cast<const Word*>(from + done);
    auto* target = reinterpret_cast<Word*>(to + done);
    for (int64_t i = thread; i < words; i += threads) target[i] = source[i];
    done += words * static_cast<int64_t>(sizeof(Word));
  };
  const auto apart = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to);
  if (apart % 16 == 0) copy_words(Pack<uint64_t, 2>{});
  if (apart % 4 == 0) copy_words(uint32_t{});
  copy_words(uint8_t{});
}

TUTTI_DEVICE void zero_tile(std::byte* to, int64_t bytes, int thread, int threads) {
  int64_t done = 0;
  if (is_aligned(to, 4)) {
    for (int64_t i = thread; i < bytes / 4; i += threads) reinterpret_cast<uint32_t*>(to)[i] = 0;
    done = bytes / 4 * 4;
  }
  for (int64_t i = done + thread; i < bytes; i += threads) to[i] = std::byte{0};
}

template <class From>
TUTTI_DEVICE bool cast_tile_from(const std::byte* from, DataType to_type, std::byte* to,
                                 int64_t count, double multiplier, int thread, int threads) {
  if (!is_aligned(from, sizeof(From)) || !is_aligned(to, static_cast<size_t>(bytes_of(to_type))))
    return false;
  switch (to_type) {
    case DataType::f64:
      if constexpr (IsNarrow<From>::value)
        return false;
      else
        cast_tile<double, From>(from, to, count, multiplier, thread, threads);
      return true;
    case DataType::f32:
      cast_tile<float, From>(from, to, count, multiplier, thread, threads);
      return true;
    case DataType::f16:
      if constexpr (sizeof(From) == 8)
        return false;
      else
        cast_tile<Float16, From>(from, to, count, multiplier, thread, threads);
      return true;
    case DataType::bf16:
      if constexpr (sizeof(From) == 8)
        return false;
      else
        cast_tile<BFloat16, From>(from, to, count, multiplier, thread, threads);
      return true;
    default:
      return false;
  }
}

/// Casts one thread's share of `count` elements.
TUTTI_DEVICE void cast_share(DataType from_type, const std::byte* from, DataType to_type,
                             std::byte* to, int64_t count, const Scaling& scaling, int thread,
                             int threads) {
  if (from_type == to_type && (scaling.is_one || from_type == DataType::boolean))
    return copy_tile(from, to, count * bytes_of(from_type), thread, threads);
  bool done = false;
  if (from_type == DataType::f32)
    done = cast_tile_from<float>(from, to_type, to, count, scaling.multiplier, thread, threads);
  else if (from_type == DataType::f16)
    done = cast_tile_from<Float16>(from, to_type, to, count, scaling.multiplier, thread, threads);
  else if (from_type == DataType::bf16)
    done = cast_tile_from<BFloat16>(from, to_type, to, count, scaling.multiplier, thread, threads);
  else if (from_type == DataType::f64)
    done = cast_tile_from<double>(from, to_type, to, count, scaling.multiplier, thread, threads);
  if (done) return;
  // Casts between floats and integers, or at addresses that are not aligned to elements, are rare,
  // so they may be slow.
  const int64_t from_size = bytes_of(from_type), to_size = bytes_of(to_type);
  for (int64_t i = thread; i < count; i += threads)
    cast_any(from_type, from + i * from_size, to_type, to + i * to_size, scaling);
}

/// One tile of a launch: what one block does.
struct PackTile {
  Stretch stretch;
  int64_t begin;  // first element within the stretch
  DataType bucket_dtype;
  bool unpacks;
  Scaling scaling;
};
template <class Table>
TUTTI_DEVICE PackTile find_tile(const Table& table, int32_t tile) {
  int low = 0, high = table.count - 1;  // finds the last stretch that begins at or before this tile
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.first_tile[middle] <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  return {table.stretches[low], (tile - table.first_tile[low]) * kTileElements, table.bucket_dtype,
          table.unpacks, table.scaling};
}

/// Does one thread's share of a tile.
TUTTI_DEVICE void run_tile(const PackTile& tile, int thread, int threads) {
  const auto& stretch = tile.stretch;
  const int64_t left = stretch.count - tile.begin;
  const int64_t count = left < kTileElements ? left : kTileElements;
  auto* bucket = stretch.bucket + tile.begin * bytes_of(tile.bucket_dtype);
  if (stretch.tensor == nullptr)
    return zero_tile(bucket, count * bytes_of(tile.bucket_dtype), thread, threads);
  auto* tensor = stretch.tensor + tile.begin * bytes_of(stretch.dtype);
  if (tile.unpacks)
    cast_share(tile.bucket_dtype, bucket, stretch.dtype, tensor, count, tile.scaling, thread,
               threads);
  else
    cast_share(stretch.dtype, tensor, tile.bucket_dtype, bucket, count, tile.scaling, thread,
               threads);
}

/// Stores a verdict lane: `one` as a number of the bucket's type.
TUTTI_DEVICE void store_lane(DataType dtype, std::byte* lane, bool one) {
  store_number(dtype, lane, Number{Number::natural, 0, 0, one ? uint64_t{1} : 0, 0});
}
TUTTI_DEVICE bool lane_is(DataType dtype, const std::byte* lane, int clean) {
  return to_wide(load_number(dtype, lane)) == static_cast<double>(clean);
}

/// Splits the pieces of a bucket into launch tables and calls f(table, tiles) for each table. If
/// `unpacks` is true, gaps between pieces are skipped.
template <class Table, class Function>
void fill_tables(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                 bool unpacks, Function&& f) {
  Table table;
  table.bucket_dtype = bucket.dtype;
  table.unpacks = unpacks;
  table.scaling = {scale.factor, scale.factor / static_cast<double>(scale.divisor), scale.divisor,
                   scale.is_one()};
  table.count = 0;
  table.first_tile[0] = 0;
  constexpr int64_t kMostTiles = int64_t{1} << 30;
  const auto flush = [&] {
    if (table.count > 0) f(table, table.first_tile[table.count]);
    table.count = 0;
  };
  const auto add = [&](const std::byte* tensor, DataType dtype, int64_t offset, int64_t count) {
    for (int64_t done = 0; done < count;) {
      const int64_t part = count - done < kMostTiles * kTileElements / 2
                               ? count - done
                               : kMostTiles * kTileElements / 2;
      const int64_t tiles = (part + kTileElements - 1) / kTileElements;
      if (table.count == Table::kMostStretches ||
          table.first_tile[table.count] + tiles > kMostTiles)
        flush();
      auto* from =
          tensor == nullptr ? nullptr : const_cast<std::byte*>(tensor) + done * bytes_of(dtype);
      table.stretches[table.count] = {from, bucket.data + (offset + done) * bytes_of(bucket.dtype),
                                      part, dtype};
      table.first_tile[table.count + 1] =
          table.first_tile[table.count] + static_cast<int32_t>(tiles);
      ++table.count;
      done += part;
    }
  };
  int64_t end = 0;
  for (const auto& piece : pieces) {
    if (!unpacks) add(nullptr, bucket.dtype, end, piece.offset - end);
    add(piece.data, piece.dtype, piece.offset, piece.count);
    end = piece.offset + piece.count;
  }
  if (!unpacks) add(nullptr, bucket.dtype, end, bucket.count - end);
  flush();
}
template <class Function>
void for_each_table(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                    bool unpacks, Function&& f) {
  if (pieces.size() <= SmallPackTable::kMostStretches)
    fill_tables<SmallPackTable>(bucket, pieces, scale, unpacks, f);
  else
    fill_tables<LargePackTable>(bucket, pieces, scale, unpacks, f);
}

}  // namespace tutti::cuda
