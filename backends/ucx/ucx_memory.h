#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/backends/ucx/library.h"
#include "tutti/collectives/region.h"

namespace tutti {

/// Regions that UCX allocates and maps. On one host they are shared memory, which peers can attach.
/// They are also registered with the hardware that needs it. A region that peers can attach has an
/// id, which is never reused. Any thread may use this object. Regions may outlive the transport.
class UcxMemory : public std::enable_shared_from_this<UcxMemory> {
 public:
  explicit UcxMemory(std::shared_ptr<UcxContext> context) : context_(std::move(context)) {}

  /// Allocates plain memory if UCX has none. Throws std::bad_alloc.
  std::unique_ptr<Region> allocate(size_t bytes);
  /// Returns the id of the region that holds all these bytes, or 0 if they are not in one region
  /// that peers can attach.
  uint32_t find(std::span<const std::byte> bytes) const;
  /// Returns the key that a peer needs to attach the region; empty if the region is gone.
  std::string key(uint32_t region) const;
  /// Attaches a peer's region by its key. Returns UCS_ERR_CONNECTION_RESET if the peer's memory is
  /// gone.
  static ucs_status_t attach(ucp_ep_h endpoint, std::string_view key, ucp_rkey_h& remote);
  /// Returns the ids of the regions that were freed since the last call.
  std::vector<uint32_t> take_freed();

 private:
  struct Mapped {
    uint32_t number = 0;
    int segment = -1;  // id of the System V segment; -1: none
    size_t bytes = 0;
    ucp_mem_h memory = nullptr;
  };
  class MappedRegion;

  const std::shared_ptr<UcxContext> context_;
  std::atomic<bool> has_freed_{false};
  mutable std::mutex mutex_;  // guards the members below
  std::map<const std::byte*, Mapped> regions_;
  std::vector<uint32_t> freed_;
  uint32_t last_number_ = 0;
};

}  // namespace tutti
