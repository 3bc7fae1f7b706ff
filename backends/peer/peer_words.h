#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/base/descriptor.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The words (64-bit counters) that a rank publishes to its peers. They are in host memory that the
/// streams and engines of all ranks reach. Their values only grow. So a rank that checks late still
/// sees that a word has reached the awaited value, even if the word already belongs to another
/// communicator. A turn is the number of a piece of work on a stream, counted upwards.
struct PeerWords {
  alignas(64) uint64_t packed;    // set by the packing stream: up to this turn, data may be read
  alignas(64) uint64_t reduced;   // set by the reducing stream: up to this turn, its work is done
  alignas(64) uint64_t begun;     // set by the engine: the last turn that it enqueued for reducing
  alignas(64) uint64_t closed;    // set by the engine: number of communicators that have closed
  alignas(64) uint64_t poisoned;  // set by other ranks if this process died without finishing
  alignas(64) uint64_t token;     // constant: identifies the owner of this block
};

inline uint64_t load_word(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_seq_cst);
}
inline void store_word(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_seq_cst);
}

/// A block of this rank's words, in a file without a name. Blocks are never unmapped, because
/// streams of peers may read a block after this rank's communicator has ended. Instead they are
/// reused.
class OwnWords {
 public:
  /// Throws Error(io).
  explicit OwnWords(DeviceRuntime& runtime);
  ~OwnWords();
  OwnWords(const OwnWords&) = delete;
  OwnWords& operator=(const OwnWords&) = delete;

  PeerWords& words() const { return *block_->words; }
  int file() const { return block_->file.get(); }
  /// Keeps the block from being reused, because streams of this rank may still store into it.
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

/// The words of a peer. If the peer is a thread of this process, they are used by their address.
/// Otherwise they are mapped from the peer's file as long as this object lives. Throws
/// Error(unavailable) if the file is gone.
class TheirWords {
 public:
  TheirWords(DeviceRuntime& runtime, PeerWords* words) : runtime_(runtime), words_(words) {}
  TheirWords(DeviceRuntime& runtime, int pid, int file, uint64_t token);
  ~TheirWords();
  TheirWords(const TheirWords&) = delete;
  TheirWords& operator=(const TheirWords&) = delete;

  PeerWords& words() const { return *words_; }
  /// Keeps the words mapped after this object is gone, because streams of this rank may still read
  /// them.
  void keep() { is_mapped_ = false; }

 private:
  DeviceRuntime& runtime_;
  PeerWords* words_ = nullptr;
  bool is_mapped_ = false;
};

}  // namespace tutti
