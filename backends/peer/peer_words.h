#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/base/descriptor.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The words that a rank publishes to its peers, in host memory that all their streams and engines
/// reach. Each number only grows. So a late waiter finds its value reached, even if another
/// communicator uses the words by then.
struct PeerWords {
  alignas(64) uint64_t packed;    // set by the packing stream: turns up to it may be read
  alignas(64) uint64_t reduced;   // set by the reducing stream: its work up to this turn is done
  alignas(64) uint64_t begun;     // set by the engine: last turn put on the reducing stream
  alignas(64) uint64_t closed;    // set by the engine: number of communicators that have closed
  alignas(64) uint64_t poisoned;  // set by survivors: this process died and they did not wait
  alignas(64) uint64_t token;     // constant: identifies the owner of this block
};

inline uint64_t load_word(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_seq_cst);
}
inline void store_word(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_seq_cst);
}

/// A block of words of this rank, in a file without a name. Blocks are never unmapped but reused,
/// since streams of peers may read one for longer than this rank's communicator lives.
class OwnWords {
 public:
  /// Throws Error(io).
  explicit OwnWords(DeviceRuntime& runtime);
  ~OwnWords();
  OwnWords(const OwnWords&) = delete;
  OwnWords& operator=(const OwnWords&) = delete;

  PeerWords& words() const { return *block_->words; }
  int file() const { return block_->file.get(); }
  /// Keeps the block from being reused, since streams of this rank may still store into it.
  void keep() { is_kept_ = true; }

 private:
  struct Block {
    Descriptor file;
    PeerWords* words = nullptr;
  };
  struct Pool;
  static Pool& pool();

  const DeviceKind kind_;
  std::unique_ptr<Block> block_;
  bool is_kept_ = false;
};

/// A peer's block. If the peer is a thread of this process, it is used by its address; otherwise it
/// is mapped from that process's file for the life of this object. Throws Error(unavailable) if it
/// is not there.
class TheirWords {
 public:
  TheirWords(DeviceRuntime& runtime, PeerWords* words) : runtime_(runtime), words_(words) {}
  TheirWords(DeviceRuntime& runtime, int pid, int file, uint64_t token);
  ~TheirWords();
  TheirWords(const TheirWords&) = delete;
  TheirWords& operator=(const TheirWords&) = delete;

  PeerWords& words() const { return *words_; }
  /// Keeps the block mapped after this object is gone, since streams of this rank may still read
  /// it.
  void keep() { is_mapped_ = false; }

 private:
  DeviceRuntime& runtime_;
  PeerWords* words_ = nullptr;
  bool is_mapped_ = false;
};

}  // namespace tutti
