#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tutti/collectives/region.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The device memory of this rank that its peers work on, and the peers' memory, mapped into this
/// process. If all ranks are threads of one process, they reach any device memory.
class PeerMemory {
 public:
  /// `is_shared` is true if at least one peer is another process.
  PeerMemory(DeviceRuntime& runtime, Device device, bool is_shared);
  /// Unmaps the peers' memory, unless keep() was called.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Allocates memory that all peers reach. The Region may outlive this object. Throws
  /// Error(out_of_memory).
  std::unique_ptr<Region> allocate(size_t bytes);
  /// Sets the handle and offset under which other processes reach the `bytes` bytes at `data`.
  /// Returns false if they cannot reach them.
  bool locate(const std::byte* data, size_t bytes, DeviceHandle& handle, uint64_t& offset) const;
  /// Returns whether all peers reach these bytes.
  bool reaches(const std::byte* data, size_t bytes) const;
  /// Returns whether all peers reach `bytes` bytes at both addresses through one handle.
  bool reaches(const std::byte* one, const std::byte* other, size_t bytes) const;
  /// Returns the address of a peer's memory. It stays mapped as long as this object lives. Throws
  /// Error(unavailable).
  std::byte* at(const DeviceHandle& handle, uint64_t offset);
  /// Keeps the peers' memory mapped after this object is gone, because streams may still use it.
  void keep() { is_kept_ = true; }

 private:
  class Shared;
  struct Book;

  DeviceRuntime& runtime_;
  const Device device_;
  const bool is_shared_;
  const std::shared_ptr<Book> book_;  // the exported regions; may outlive this object
  std::map<DeviceHandle, void*> mapped_;
  bool is_kept_ = false;
};

}  // namespace tutti
