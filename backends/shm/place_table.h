#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "tutti/backends/shared/shared_memory.h"
#include "tutti/base/sync.h"

namespace tutti {

/// A table that maps addresses to offsets in the shared file (`place`). Its readers never block. A
/// reader that meets a change reads the table again, which is rare. One thread at a time changes
/// it.
template <class Sync>
class PlaceTableOf {
 public:
  struct Span {
    uint64_t place;
    size_t bytes;
    const std::byte* data;
  };

  void add(const Span& span) {
    auto* block = &first_;
    for (;; block = block->next.get()) {
      const auto free = std::find_if(block->rows.begin(), block->rows.end(), [](const Row& row) {
        return row.bytes.load(std::memory_order_relaxed) == 0;
      });
      if (free != block->rows.end()) return write(*free, span);
      if (block->next != nullptr) continue;
      block->next = std::make_unique<Block>();
      block->after.store(block->next.get(), std::memory_order_release);
    }
  }
  /// Removes the span at this offset. Returns the span, or nothing if there is none.
  std::optional<Span> remove(uint64_t place) noexcept {
    for (auto* block = &first_; block != nullptr; block = block->next.get())
      for (auto& row : block->rows) {
        const auto span = read(row);
        if (span.bytes == 0 || span.place != place) continue;
        write(row, {});
        return span;
      }
    return {};
  }
  uint64_t find(const std::byte* data, size_t bytes) const {
    for (;;) {
      const auto before = version_.load(std::memory_order_acquire);
      const uint64_t place = look_up(data, bytes);
      // The rows were read with acquire, so this load cannot move before those loads.
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return place;
      Sync::pause();
    }
  }

 private:
  template <class T>
  using Atomic = typename Sync::template Atomic<T>;
  struct Row {
    Atomic<uint64_t> place{0};
    Atomic<size_t> bytes{0};  // 0: the row is free
    Atomic<const std::byte*> data{nullptr};
  };
  struct Block {
    std::array<Row, 16> rows;
    Atomic<const Block*> after{nullptr};  // the next block, for the readers
    std::unique_ptr<Block> next;          // the next block, for the writer
  };

  static Span read(const Row& row) {
    return {row.place.load(std::memory_order_acquire), row.bytes.load(std::memory_order_acquire),
            row.data.load(std::memory_order_acquire)};
  }
  // Every store to the row is a release. So a reader that sees one of them also sees the odd
  // version.
  void write(Row& row, const Span& span) noexcept {
    const auto version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    row.place.store(span.place, std::memory_order_release);
    row.bytes.store(span.bytes, std::memory_order_release);
    row.data.store(span.data, std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }
  uint64_t look_up(const std::byte* data, size_t bytes) const {
    for (const auto* block = &first_; block != nullptr;
         block = block->after.load(std::memory_order_acquire))
      for (const auto& row : block->rows) {
        const auto span = read(row);
        if (data < span.data || data + bytes > span.data + span.bytes || span.bytes == 0) continue;
        return span.place + static_cast<uint64_t>(data - span.data);
      }
    return SharedMemory::kNowhere;
  }

  Atomic<uint64_t> version_{0};  // odd while a row is being written
  Block first_;
};
using PlaceTable = PlaceTableOf<Threads>;

}  // namespace tutti
