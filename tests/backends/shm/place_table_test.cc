// The table of shared memory offsets, in one thread. tests/explore runs its readers beside the
// writer.

#include "tutti/backends/shm/place_table.h"

#include <gtest/gtest.h>

#include <array>

namespace tutti::test {
namespace {

constexpr size_t kSpans = 40;  // a block has 16 rows, so readers go through three
constexpr size_t kBytes = 64;
constexpr uint64_t kFirstPlace = 1 << 20;

// The offset of a span identifies it.
uint64_t place_of(size_t span) { return kFirstPlace * (span + 1); }

struct Memory {
  alignas(64) std::array<std::byte, kSpans * kBytes> bytes{};
  PlaceTable::Span span(size_t at) const {
    return {place_of(at), kBytes, bytes.data() + at * kBytes};
  }
};

TEST(PlaceTable, FindsWhatLiesInOneSpan) {
  const Memory memory;
  PlaceTable table;
  for (size_t at = 0; at < kSpans; at += 2) table.add(memory.span(at));
  EXPECT_EQ(table.find(memory.bytes.data() + 4, 8), place_of(0) + 4);
  EXPECT_EQ(table.find(memory.bytes.data(), kBytes + 1), SharedMemory::kNowhere);
  EXPECT_EQ(table.find(memory.bytes.data() + kBytes, 1), SharedMemory::kNowhere);
  const auto removed = table.remove(place_of(38));
  ASSERT_TRUE(removed);
  EXPECT_EQ(removed->data, memory.bytes.data() + 38 * kBytes);
  EXPECT_FALSE(table.remove(place_of(38)));
  EXPECT_EQ(table.find(memory.bytes.data() + 38 * kBytes, 1), SharedMemory::kNowhere);
}

}  // namespace
}  // namespace tutti::test
