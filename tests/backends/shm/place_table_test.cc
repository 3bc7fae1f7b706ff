// One thread writes the table of shared places while others read it without a lock.

#include "tutti/backends/shm/place_table.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/base/deadline.h"

namespace tutti::test {
namespace {

constexpr size_t kSpans = 40;  // of 16 rows a block: the readers go through three
constexpr size_t kBytes = 64;
constexpr uint64_t kFirstPlace = 1 << 20;

// The place of a span says which one it is.
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

// Spans come and go in any order, so a row holds another one each time: half of one and half of the
// next would be a place that belongs to other memory.
TEST(PlaceTable, NoReaderSeesHalfARow) {
  const Memory memory;
  PlaceTable table;
  std::atomic<bool> is_over{false};
  std::atomic<int> found{0}, nowhere{0}, wrong{0};
  std::vector<std::thread> readers;
  for (unsigned seed = 1; seed <= 2; ++seed)
    readers.emplace_back([&, seed] {
      std::minstd_rand random(seed);
      while (!is_over) {
        const size_t at = random() % kSpans;
        const auto place = table.find(memory.bytes.data() + at * kBytes, kBytes);
        ++(place == place_of(at) ? found : place == SharedMemory::kNowhere ? nowhere : wrong);
      }
    });
  std::minstd_rand random(3);
  std::array<bool, kSpans> is_there{};
  const auto enough = Deadline::after(10);
  const int most = repetitions(400'000);
  for (int change = 0; change < most || found == 0 || nowhere == 0; ++change) {
    if (enough.passed()) break;
    const size_t at = random() % kSpans;
    is_there[at] ? static_cast<void>(table.remove(place_of(at))) : table.add(memory.span(at));
    is_there[at] = !is_there[at];
  }
  is_over = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(found, 0);
  EXPECT_GT(nowhere, 0);
}

// What was written before a place was told is seen by whoever finds it; so tsan says, which knows
// the language's order and not the host's.
TEST(PlaceTable, WhatLiesAtAFoundPlaceIsThere) {
  Memory memory;
  PlaceTable table;
  const auto deadline = Deadline::after(20);
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    for (size_t at = 0; at < kSpans; ++at) {
      const auto* data = memory.bytes.data() + at * kBytes;
      while (table.find(data, kBytes) == SharedMemory::kNowhere && !deadline.passed())
        std::this_thread::yield();
      if (deadline.passed() || *data != static_cast<std::byte>(at + 1)) ++wrong;
    }
  });
  for (size_t at = 0; at < kSpans; ++at) {
    memory.bytes[at * kBytes] = static_cast<std::byte>(at + 1);
    table.add(memory.span(at));
    if (at % 3 == 0) std::this_thread::yield();
  }
  reader.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tutti::test
