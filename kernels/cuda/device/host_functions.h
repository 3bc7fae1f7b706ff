#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tutti/base/process/fork_guard.h"

namespace tutti::cuda {

/// Calls functions when words are stored. CUDA's own way of calling the host from a stream uses one
/// thread for a whole process, and that thread stands still while another thread copies memory that
/// is not pinned on a held stream, even if the call would be what lets that stream go on. This
/// object's thread only loads words, and nothing of CUDA stops it.
class HostFunctions {
 public:
  /// `give_back` gets each word back before its function is called.
  explicit HostFunctions(std::function<void(uint64_t*)> give_back);
  ~HostFunctions() { end(); }
  HostFunctions(const HostFunctions&) = delete;
  HostFunctions& operator=(const HostFunctions&) = delete;

  /// Calls `function` on this object's thread once `word` is not zero, after the functions that
  /// were added for `stream` before it.
  void add(const void* stream, uint64_t* word, std::function<void()> function);
  /// Ends the thread. Functions whose words were not stored are never called, nor are later ones.
  /// In a fork, which has no such thread, it does nothing.
  void end();

 private:
  struct Pending {
    const void* stream;
    uint64_t* word;
    std::function<void()> function;
  };

  void run();
  size_t call_those_stored(std::vector<Pending>& pending);

  const ForkGuard fork_guard_;
  const std::function<void(uint64_t*)> give_back_;
  std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::vector<Pending> added_;
  bool is_over_ = false;
  std::thread thread_;  // starts with the first function
};

}  // namespace tutti::cuda
