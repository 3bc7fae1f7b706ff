#include "tutti/backends/memory/thread_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tutti/backends/memory/memory_link.h"
#include "tutti/base/error.h"

namespace tutti {

namespace {

constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) { return std::max(kPage, (bytes + kPage - 1) / kPage * kPage); }

class ThreadRegion final : public Region {
 public:
  ThreadRegion(std::shared_ptr<ThreadHeap> heap, size_t bytes, bool is_for_good)
      : heap_(std::move(heap)),
        bytes_(bytes),
        data_(heap_->take(bytes)),
        is_for_good_(is_for_good) {}
  ~ThreadRegion() override {
    if (!is_for_good_) heap_->give_back(data_);
  }
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }
  RegionHandle handle() const override {
    return {RegionHandle::Kind::address, -1, reinterpret_cast<uintptr_t>(data_), bytes_};
  }

 private:
  const std::shared_ptr<ThreadHeap> heap_;
  const size_t bytes_;
  std::byte* const data_;
  const bool is_for_good_;
};

class ThreadMemory final : public SharedMemory {
 public:
  ThreadMemory(int rank, std::shared_ptr<ThreadHeap> own,
               std::vector<std::shared_ptr<MemoryLink>> links)
      : rank_(rank), own_(std::move(own)), links_(std::move(links)) {}

  std::unique_ptr<Region> allocate(size_t bytes) override {
    return std::make_unique<ThreadRegion>(own_, whole_pages(bytes), false);
  }
  std::unique_ptr<Region> allocate_for_good(size_t bytes) override {
    return std::make_unique<ThreadRegion>(own_, whole_pages(bytes), true);
  }
  uint64_t place_of(const std::byte* data, size_t bytes) const override {
    return own_->holds(data, bytes) ? reinterpret_cast<uintptr_t>(data) : kNowhere;
  }
  std::byte* at(int, uint64_t place, size_t) override {
    return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(place));
  }
  std::byte* first(int rank) override {
    return rank == rank_ ? own_->first() : link(rank).heap[end_of(rank)]->first();
  }
  void ring(int rank) override { link(rank).bell[end_of(rank)].ring(); }

 private:
  MemoryLink& link(int rank) const { return *links_[static_cast<size_t>(rank)]; }
  // The lower rank of a pair is end 0.
  int end_of(int rank) const { return rank < rank_ ? 0 : 1; }

  const int rank_;
  const std::shared_ptr<ThreadHeap> own_;
  const std::vector<std::shared_ptr<MemoryLink>> links_;
};

}  // namespace

ThreadHeap::ThreadHeap() : first_(take(shared_block_bytes())) {}

ThreadHeap::~ThreadHeap() {
  for (const auto& block : blocks_) ::munmap(block.data, block.bytes);
}

std::byte* ThreadHeap::take(size_t bytes) {
  bytes = whole_pages(bytes);
  const std::lock_guard lock(mutex_);
  for (auto& block : blocks_)
    if (!block.used && block.bytes == bytes) {
      block.used = true;
      std::memset(block.data, 0, bytes);
      return block.data;
    }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw system_error("cannot get memory to share", errno);
  blocks_.push_back({static_cast<std::byte*>(data), bytes, true});
  return blocks_.back().data;
}

void ThreadHeap::give_back(std::byte* data) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& block : blocks_)
    if (block.data == data) block.used = false;
}

bool ThreadHeap::holds(const std::byte* data, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(blocks_.begin() + 1, blocks_.end(), [&](const Block& block) {
    return block.used && data >= block.data && data + bytes <= block.data + block.bytes;
  });
}

std::unique_ptr<SharedMemory> make_thread_memory(int rank, std::shared_ptr<ThreadHeap> own,
                                                 std::vector<std::shared_ptr<MemoryLink>> links) {
  return std::make_unique<ThreadMemory>(rank, std::move(own), std::move(links));
}

}  // namespace tutti
