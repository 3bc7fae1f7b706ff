#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tutti/base/process/fork_guard.h"

namespace tutti::cuda {

/// Calls a function when a stream has stored a nonzero value in the function's 64-bit word. CUDA's
/// own host functions all run on one thread per process. That thread blocks while another thread
/// copies unpinned memory on a blocked stream. If a host function had to unblock that stream, both
/// would wait forever. This object's thread only loads words, and CUDA cannot block it.
class HostFunctions {
 public:
  /// `give_back` receives each word before its function is called.
  explicit HostFunctions(std::function<void(uint64_t*)> give_back);
  ~HostFunctions() { end(); }
  HostFunctions(const HostFunctions&) = delete;
  HostFunctions& operator=(const HostFunctions&) = delete;

  /// Calls `function` on this object's thread once `word` is nonzero, after all earlier functions
  /// of `stream`.
  void add(const void* stream, uint64_t* word, std::function<void()> function);
  /// Ends the thread. Functions whose words are still zero are never called, and neither are
  /// functions added later. In a forked process, which lacks that thread, end() does nothing.
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
  std::thread thread_;  // started by the first add()
};

}  // namespace tutti::cuda
