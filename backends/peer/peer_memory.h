#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tutti/collectives/region.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// Device memory of this rank that its peers work on, and theirs as this rank reaches it. Where all
/// ranks are threads of one process, any memory will do.
class PeerMemory {
 public:
  /// `is_shared`: some peer is another process.
  PeerMemory(DeviceRuntime& runtime, Device device, bool is_shared);
  /// Unmaps what is the peers', unless keep() was called.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Memory that all peers reach, which may outlive this object. Throws Error(out_of_memory).
  std::unique_ptr<Region> allocate(size_t bytes);
  /// Where peers of other processes find `bytes` bytes at `data`; false if they cannot.
  bool locate(const std::byte* data, size_t bytes, DeviceHandle& handle, uint64_t& offset) const;
  /// Whether all peers reach them.
  bool reaches(const std::byte* data, size_t bytes) const;
  /// Whether they reach as many at both places, by one handle.
  bool reaches(const std::byte* one, const std::byte* other, size_t bytes) const;
  /// A peer's memory, mapped for as long as this object lives. Throws Error(unavailable).
  std::byte* at(const DeviceHandle& handle, uint64_t offset);
  /// Streams may work on the peers' memory for longer than this lives: it stays mapped.
  void keep() { is_kept_ = true; }

 private:
  class Shared;
  struct Book;

  DeviceRuntime& runtime_;
  const Device device_;
  const bool is_shared_;
  const std::shared_ptr<Book> book_;  // of the regions, which may outlive this
  std::map<DeviceHandle, void*> mapped_;
  bool is_kept_ = false;
};

}  // namespace tutti
