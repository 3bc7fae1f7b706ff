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

/// Regions that UCX allocates and maps: in one host shared memory, which peers attach, and
/// registered wherever hardware asks for it. Each that peers can attach has a number that is never
/// used again. Any thread; regions may outlive the transport.
class UcxMemory : public std::enable_shared_from_this<UcxMemory> {
 public:
  explicit UcxMemory(std::shared_ptr<UcxContext> context) : context_(std::move(context)) {}

  /// Other memory where UCX has none to give. Throws std::bad_alloc.
  std::unique_ptr<Region> allocate(size_t bytes);
  /// The number of the region in which all these bytes lie; 0: in none that peers can attach.
  uint32_t find(std::span<const std::byte> bytes) const;
  /// What a peer needs to attach it; empty if it is gone.
  std::string key(uint32_t region) const;
  /// Attaches a peer's region by its key. UCS_ERR_CONNECTION_RESET: the peer's memory is gone.
  static ucs_status_t attach(ucp_ep_h endpoint, std::string_view key, ucp_rkey_h& remote);
  /// The numbers of those that were freed since the last call.
  std::vector<uint32_t> take_freed();

 private:
  struct Mapped {
    uint32_t number = 0;
    int segment = -1;  // of System V
    size_t bytes = 0;
    ucp_mem_h memory = nullptr;
  };
  class MappedRegion;

  const std::shared_ptr<UcxContext> context_;
  std::atomic<bool> has_freed_{false};
  mutable std::mutex mutex_;  // guards all below
  std::map<const std::byte*, Mapped> regions_;
  std::vector<uint32_t> freed_;
  uint32_t last_number_ = 0;
};

}  // namespace tutti
