#include "tutti/backends/ucx/ucx_memory.h"

#include <sys/shm.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "tutti/backends/ucx/limits.h"

namespace tutti {

namespace {

// Returns the id of the System V segment that begins at this address, or -1. UCX does not report
// the id, but Linux lists it as the mapping's inode.
int segment_at(const std::byte* data) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uint64_t inode = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%*s %*s %*s %*s %" SCNu64, &begin, &inode) == 2 &&
        begin == reinterpret_cast<uintptr_t>(data))
      return line.find(" /SYSV") == line.npos ? -1 : static_cast<int>(inode);
  }
  return -1;
}

// Keeps a segment alive, even if the process that made it ends.
class SegmentHold {
 public:
  explicit SegmentHold(int segment) : here_(::shmat(segment, nullptr, SHM_RDONLY)) {}
  ~SegmentHold() {
    if (*this) ::shmdt(here_);
  }
  SegmentHold(const SegmentHold&) = delete;
  SegmentHold& operator=(const SegmentHold&) = delete;
  explicit operator bool() const { return reinterpret_cast<intptr_t>(here_) != -1; }

 private:
  const void* const here_;
};

}  // namespace

class UcxMemory::MappedRegion final : public Region {
 public:
  MappedRegion(std::shared_ptr<UcxMemory> owner, std::byte* data, size_t bytes)
      : owner_(std::move(owner)), data_(data), bytes_(bytes) {}
  ~MappedRegion() override {
    const std::lock_guard lock(owner_->mutex_);
    const auto place = owner_->regions_.find(data_);
    ucp_mem_unmap(owner_->context_->get(), place->second.memory);
    owner_->freed_.push_back(place->second.number);
    owner_->regions_.erase(place);
    owner_->has_freed_.store(true, std::memory_order_release);
  }
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<UcxMemory> owner_;
  std::byte* const data_;
  const size_t bytes_;
};

std::unique_ptr<Region> UcxMemory::allocate(size_t bytes) {
  // Messages of this size are sent eagerly, so peers need not attach their memory.
  if (bytes <= kMostEager) return make_heap_region(bytes);
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  const std::lock_guard lock(mutex_);
  Mapped mapped{.bytes = bytes};
  if (ucp_mem_map(context_->get(), &params, &mapped.memory) != UCS_OK)
    return make_heap_region(bytes);
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  const auto status = ucp_mem_query(mapped.memory, &attributes);
  const bool is_aligned = reinterpret_cast<uintptr_t>(attributes.address) % Region::kAlignment == 0;
  if (status != UCS_OK || !is_aligned) {
    ucp_mem_unmap(context_->get(), mapped.memory);
    return make_heap_region(bytes);
  }
  auto* data = static_cast<std::byte*>(attributes.address);
  mapped.segment = segment_at(data);
  if (mapped.segment >= 0) mapped.number = ++last_number_;
  regions_.emplace(data, mapped);
  return std::make_unique<MappedRegion>(shared_from_this(), data, bytes);
}

uint32_t UcxMemory::find(std::span<const std::byte> bytes) const {
  const std::lock_guard lock(mutex_);
  auto place = regions_.upper_bound(bytes.data());
  if (place == regions_.begin()) return 0;
  --place;
  const bool holds = bytes.data() + bytes.size() <= place->first + place->second.bytes;
  return holds ? place->second.number : 0;
}

std::string UcxMemory::key(uint32_t region) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [data, mapped] : regions_) {
    if (mapped.number != region) continue;
    void* key = nullptr;
    size_t bytes = 0;
    if (ucp_rkey_pack(context_->get(), mapped.memory, &key, &bytes) != UCS_OK) return {};
    std::string packed(static_cast<const char*>(key), bytes);
    packed.append(reinterpret_cast<const char*>(&mapped.segment), sizeof mapped.segment);
    ucp_rkey_buffer_release(key);
    return packed;
  }
  return {};
}

// Attaches a peer's region. UCX 1.13 has a bug: it aborts the process if the segment no longer
// exists. The segment of a killed process can vanish before its peers notice the death. So this
// rank attaches the segment itself first. Memory without a segment id is never offered to peers.
ucs_status_t UcxMemory::attach(ucp_ep_h endpoint, std::string_view key, ucp_rkey_h& remote) {
  int segment = -1;
  if (key.size() <= sizeof segment) return UCS_ERR_INVALID_PARAM;
  std::memcpy(&segment, key.data() + key.size() - sizeof segment, sizeof segment);
  const SegmentHold hold(segment);
  if (!hold) return errno == ENOMEM ? UCS_ERR_NO_MEMORY : UCS_ERR_CONNECTION_RESET;
  return ucp_ep_rkey_unpack(endpoint, key.data(), &remote);
}

std::vector<uint32_t> UcxMemory::take_freed() {
  if (!has_freed_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  has_freed_.store(false, std::memory_order_relaxed);
  return std::exchange(freed_, {});
}

}  // namespace tutti
