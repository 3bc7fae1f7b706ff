#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "tutti/backends/memory/thread_memory.h"
#include "tutti/backends/stream/ring_channel.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Two rings and two bells between two threads, shared by the channels at both ends. End 0 writes
/// ring 0 and is woken by bell 0.
struct MemoryLink {
  explicit MemoryLink(size_t bytes)
      : ring_bytes(bytes), memory(std::make_unique_for_overwrite<std::byte[]>(2 * bytes)) {}

  const size_t ring_bytes;
  std::unique_ptr<std::byte[]> memory;
  RingControl control[2];
  Bell bell[2];
  std::atomic<bool> closed[2] = {};  // by end: true once its channel is destroyed
  // by end: the memory that its rank shares, or null; set before the ends connect
  std::shared_ptr<ThreadHeap> heap[2];

  std::span<std::byte> ring(int end) {
    return {memory.get() + static_cast<size_t>(end) * ring_bytes, ring_bytes};
  }
};

/// One end of a MemoryLink.
class MemoryChannel final : public RingChannel {
 public:
  MemoryChannel(std::shared_ptr<MemoryLink> link, int end)
      : RingChannel(RingConsumer(link->control[1 - end], link->ring(1 - end)),
                    RingProducer(link->control[end], link->ring(end)), link->bell[end],
                    link->bell[1 - end]),
        link_(std::move(link)),
        end_(end) {}
  ~MemoryChannel() override {
    forget_all();
    link_->closed[end_].store(true, std::memory_order_seq_cst);
    peer_bell().ring();
  }
  std::string_view route() const override { return "memory"; }

 private:
  std::string_view look_for_end(bool) override {
    if (!link_->closed[1 - end_].load(std::memory_order_seq_cst)) return {};
    return "its Communicator was destroyed";
  }

  std::shared_ptr<MemoryLink> link_;
  const int end_;
};

}  // namespace tutti
