#include "tests/simulation/world/sim_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::simulation {

namespace {

constexpr size_t kPage = Region::kAlignment;
constexpr std::byte kGivenBack{0xdb};

/// Memory that its peers can still read when it is gone.
class KeptRegion : public Region {
 public:
  KeptRegion(std::shared_ptr<SimHeap> heap, size_t bytes)
      : heap_(std::move(heap)), bytes_(bytes), data_(heap_->take(bytes)) {}
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }
  RegionHandle handle() const override {
    return {RegionHandle::Kind::address, -1, heap_->place_of(data_, bytes_), bytes_};
  }

 protected:
  const std::shared_ptr<SimHeap> heap_;

 private:
  const size_t bytes_;
  std::byte* const data_;
};

class SimRegion final : public KeptRegion {
 public:
  using KeptRegion::KeptRegion;
  ~SimRegion() override { heap_->give_back(data()); }
};

class SimMemory final : public SharedMemory {
 public:
  SimMemory(int rank, std::vector<std::shared_ptr<SimHeap>> heaps, std::function<void(int)> rings,
            std::function<bool()> has_good)
      : rank_(rank),
        heaps_(std::move(heaps)),
        rings_(std::move(rings)),
        has_good_(std::move(has_good)) {}

  std::unique_ptr<Region> allocate(size_t bytes) override {
    return std::make_unique<SimRegion>(heap(rank_), bytes);
  }
  std::unique_ptr<Region> allocate_for_good(size_t bytes) override {
    if (!has_good_()) throw Error(ErrorCode::out_of_memory, "there is no memory for good");
    return std::make_unique<KeptRegion>(heap(rank_), bytes);
  }
  uint64_t place_of(const std::byte* data, size_t bytes) const override {
    return heaps_[static_cast<size_t>(rank_)]->place_of(data, bytes);
  }
  std::byte* at(int rank, uint64_t place, size_t bytes) override {
    if (auto* found = heap(rank)->at(place, bytes)) return found;
    throw Error(ErrorCode::corrupt_data,
                fmt::format("rank {} has nothing at place {}", rank, place));
  }
  std::byte* first(int rank) override { return heap(rank)->first(); }
  void ring(int rank) override { rings_(rank); }

 private:
  const std::shared_ptr<SimHeap>& heap(int rank) { return heaps_.at(static_cast<size_t>(rank)); }

  const int rank_;
  const std::vector<std::shared_ptr<SimHeap>> heaps_;
  const std::function<void(int)> rings_;
  const std::function<bool()> has_good_;
};

}  // namespace

void SimHeap::Free::operator()(std::byte* data) const {
  ::operator delete (data, std::align_val_t{kPage});
}

SimHeap::SimHeap(size_t first) { take(first); }

std::byte* SimHeap::take(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  auto& block = blocks_.emplace_back();
  block.data.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPage})));
  std::memset(block.data.get(), 0, bytes);
  block.bytes = bytes;
  block.place = end_;
  end_ += bytes + kPage;  // leaves a gap behind each block
  return block.data.get();
}

void SimHeap::give_back(const std::byte* data) {
  for (auto& block : blocks_) {
    if (block.data.get() != data) continue;
    block.is_taken = false;
    std::memset(block.data.get(), static_cast<int>(kGivenBack), block.bytes);
  }
}

uint64_t SimHeap::place_of(const std::byte* data, size_t bytes) const {
  // The first block holds the ranks' flags and no elements of an operation.
  for (size_t i = 1; i < blocks_.size(); ++i) {
    const auto& block = blocks_[i];
    const auto* begin = block.data.get();
    if (block.is_taken && data >= begin && data + bytes <= begin + block.bytes)
      return block.place + static_cast<uint64_t>(data - begin);
  }
  return SharedMemory::kNowhere;
}

std::byte* SimHeap::at(uint64_t place, size_t bytes) const {
  for (const auto& block : blocks_)
    if (place >= block.place && place + bytes <= block.place + block.bytes)
      return block.data.get() + (place - block.place);
  return nullptr;
}

bool SimHeap::is_untouched() const {
  return std::ranges::all_of(blocks_, [](const Block& block) {
    const auto* begin = block.data.get();
    return block.is_taken || std::all_of(begin, begin + block.bytes,
                                         [](std::byte byte) { return byte == kGivenBack; });
  });
}

SimShared::SimShared(int size, size_t first) {
  for (int rank = 0; rank < size; ++rank) heaps_.push_back(std::make_shared<SimHeap>(first));
}

std::unique_ptr<SharedMemory> SimShared::of(int rank, std::function<void(int)> rings,
                                            std::function<bool()> has_good) {
  return std::make_unique<SimMemory>(rank, heaps_, std::move(rings), std::move(has_good));
}

}  // namespace tutti::simulation
