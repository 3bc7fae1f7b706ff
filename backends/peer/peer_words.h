#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/base/descriptor.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// What a rank tells its peers, in host memory that all their streams and engines reach. Each
/// number only grows, so that whoever still waits for one that was told him finds it reached, even
/// if another communicator uses the words by then.
struct PeerWords {
  alignas(64) uint64_t packed;    // the packing stream stores it: data of turns <= it may be read
  alignas(64) uint64_t reduced;   // the reducing stream does: its work of turns <= it is done
  alignas(64) uint64_t begun;     // the engine: the last turn that it put on the reducing stream
  alignas(64) uint64_t closed;    // the engine: communicators that take no more part
  alignas(64) uint64_t poisoned;  // survivors: its process died, and they went on without waiting
  alignas(64) uint64_t token;     // constant: whose block this is
};

inline uint64_t load_word(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_seq_cst);
}
inline void store_word(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_seq_cst);
}

/// A block of this rank's, in a file without a name. Blocks are never unmapped but used again,
/// since streams of peers may look at one for longer than this rank's communicator lives.
class OwnWords {
 public:
  /// Throws Error(io).
  explicit OwnWords(DeviceRuntime& runtime);
  ~OwnWords();
  OwnWords(const OwnWords&) = delete;
  OwnWords& operator=(const OwnWords&) = delete;

  PeerWords& words() const { return *block_->words; }
  int file() const { return block_->file.get(); }
  /// Streams of this rank may store into it for longer than it lives: nobody else gets it.
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

/// A peer's block: the pointer, if it is a thread of this process, else mapped from that process'
/// file for the life of this object. Throws Error(unavailable) if it is not there.
class TheirWords {
 public:
  TheirWords(DeviceRuntime& runtime, PeerWords* words) : runtime_(runtime), words_(words) {}
  TheirWords(DeviceRuntime& runtime, int pid, int file, uint64_t token);
  ~TheirWords();
  TheirWords(const TheirWords&) = delete;
  TheirWords& operator=(const TheirWords&) = delete;

  PeerWords& words() const { return *words_; }
  /// Streams of this rank may look at it for longer than this lives: it stays mapped.
  void keep() { is_mapped_ = false; }

 private:
  DeviceRuntime& runtime_;
  PeerWords* words_ = nullptr;
  bool is_mapped_ = false;
};

}  // namespace tutti
