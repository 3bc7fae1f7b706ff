// The table of shared offsets: one thread writes it while two look offsets up without a lock.
#include "tutti/backends/shm/place_table.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"

namespace tutti::explore {
namespace {

struct Places {
  static constexpr size_t kBytes = 8;
  using Table = PlaceTableOf<Explored>;
  struct Memory {
    std::array<std::byte, kBytes> bytes{};
    uint64_t place;
    Table::Span span() const { return {place, kBytes, bytes.data()}; }
  };

  Table table;
  Memory first{.place = 1000}, second{.place = 2000};

  // Both spans use the first row, one after the other.
  void write() {
    add(first);
    const auto removed = table.remove(first.place);
    require(removed && removed->data == first.bytes.data(), "another span was removed");
    add(second);
  }
  void add(Memory& memory) {
    Explored::writes(memory.bytes.data());
    table.add(memory.span());
  }
  void look_up(const Memory& memory) {
    const uint64_t place = table.find(memory.bytes.data() + 1, 2);
    if (place == SharedMemory::kNowhere) return;
    require(place == memory.place + 1, "a place is half of one row and half of another");
    Explored::reads(memory.bytes.data());
  }
};

TEST(PlaceTableModel, AReaderSeesAWholeRowAndWhatLiesThere) {
  const auto outcome = explore([](Model& model) {
    auto places = std::make_shared<Places>();
    model.thread("writer", [=] { places->write(); });
    model.thread("first reader", [=] { places->look_up(places->first); });
    model.thread("second reader", [=] { places->look_up(places->second); });
  });
  EXPECT_EQ(outcome.failure, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete);
  RecordProperty("runs", static_cast<int>(outcome.runs));
}

}  // namespace
}  // namespace tutti::explore
