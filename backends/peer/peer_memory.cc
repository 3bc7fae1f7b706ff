#include "tutti/backends/peer/peer_memory.h"

namespace tutti {

// The exported regions, by address.
struct PeerMemory::Book {
  struct Row {
    size_t bytes;
    DeviceHandle handle;
  };
  mutable std::mutex mutex;  // guards the following
  std::map<const std::byte*, Row> rows;
};

class PeerMemory::Shared final : public Region {
 public:
  Shared(DeviceRuntime& runtime, Device device, size_t bytes, std::shared_ptr<Book> book)
      : runtime_(runtime), bytes_(bytes), book_(std::move(book)) {
    DeviceHandle handle{};
    data_ = static_cast<std::byte*>(runtime.allocate_shared(bytes, device, handle));
    const std::lock_guard lock(book_->mutex);
    book_->rows[data_] = {bytes, handle};
  }
  ~Shared() override {
    {
      const std::lock_guard lock(book_->mutex);
      book_->rows.erase(data_);
    }
    runtime_.free_shared(data_);
  }
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  DeviceRuntime& runtime_;
  const size_t bytes_;
  const std::shared_ptr<Book> book_;
  std::byte* data_ = nullptr;
};

namespace {

// Plain device memory, for ranks that are all threads of this process.
class PlainRegion final : public Region {
 public:
  PlainRegion(DeviceRuntime& runtime, Device device, size_t bytes)
      : runtime_(runtime),
        device_(device),
        data_(static_cast<std::byte*>(runtime.allocate(bytes, device))),
        bytes_(bytes) {}
  ~PlainRegion() override { runtime_.free(data_, device_); }
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  DeviceRuntime& runtime_;
  const Device device_;
  std::byte* const data_;
  const size_t bytes_;
};

}  // namespace

PeerMemory::PeerMemory(DeviceRuntime& runtime, Device device, bool is_shared)
    : runtime_(runtime), device_(device), is_shared_(is_shared), book_(std::make_shared<Book>()) {}

PeerMemory::~PeerMemory() {
  if (is_kept_) return;
  for (const auto& [handle, memory] : mapped_) runtime_.unmap_shared(memory);
}

std::unique_ptr<Region> PeerMemory::allocate(size_t bytes) {
  if (is_shared_) return std::make_unique<Shared>(runtime_, device_, bytes, book_);
  return std::make_unique<PlainRegion>(runtime_, device_, bytes);
}

bool PeerMemory::locate(const std::byte* data, size_t bytes, DeviceHandle& handle,
                        uint64_t& offset) const {
  const std::lock_guard lock(book_->mutex);
  auto row = book_->rows.upper_bound(data);
  if (row == book_->rows.begin()) return false;
  --row;
  offset = static_cast<uint64_t>(data - row->first);
  if (offset + bytes > row->second.bytes) return false;
  handle = row->second.handle;
  return true;
}

bool PeerMemory::reaches(const std::byte* data, size_t bytes) const {
  DeviceHandle handle;
  uint64_t offset = 0;
  return !is_shared_ || locate(data, bytes, handle, offset);
}

bool PeerMemory::reaches(const std::byte* one, const std::byte* other, size_t bytes) const {
  if (!is_shared_) return true;
  DeviceHandle of_one, of_other;
  uint64_t offset = 0;
  return locate(one, bytes, of_one, offset) && locate(other, bytes, of_other, offset) &&
         of_one == of_other;
}

std::byte* PeerMemory::at(const DeviceHandle& handle, uint64_t offset) {
  auto found = mapped_.find(handle);
  if (found == mapped_.end())
    found = mapped_.emplace(handle, runtime_.map_shared(handle, device_)).first;
  return static_cast<std::byte*>(found->second) + offset;
}

}  // namespace tutti
