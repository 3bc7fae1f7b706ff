#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tutti {

/// Detects, at the cost of one load, that the current process is a fork of the one that made the
/// guard. All guards of a process share one page, which the kernel replaces by a blank page in
/// children. A forked process has its parent's memory but not its threads. It also shares the
/// parent's sockets, epoll sets, eventfds and shared memory, so anything it does to these affects
/// the parent and its peers.
class ForkGuard {
 public:
  /// Guards the calling process.
  ForkGuard();
  bool forked() const {
    return mark_ != nullptr ? mark_->load(std::memory_order_relaxed) != process_
                            : has_other_number();
  }

 private:
  bool has_other_number() const;

  const std::atomic<uint32_t>* mark_;  // null if the kernel cannot blank the page
  uint32_t process_;
};

/// Keeps a pointer to an object that must never be deleted, so that leak checkers do not report it.
/// A fork uses this for its copies of its parent's objects.
void keep_for_good(const void* object);

/// Deletes an object only in the process that created it.
template <class T>
struct DeleteWhereMade {
  ForkGuard made = {};
  void operator()(T* object) const {
    if (made.forked())
      keep_for_good(object);
    else
      delete object;
  }
};

/// Owns an object that reaches beyond its process, because it has threads, connections, sleepers or
/// shared memory. A forked process leaves it untouched; its memory is freed when the fork ends. (A
/// shared_ptr takes the same deleter.)
template <class T>
using OwnedWhereMade = std::unique_ptr<T, DeleteWhereMade<T>>;

}  // namespace tutti
