#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tutti {

/// Tells a process that it is a fork of the one that made the guard, at the cost of one load: the
/// kernel gives children a blank page in the place of one that all guards of a process look at. A
/// fork has the memory of its parent but not its threads, and shares its sockets, epoll sets,
/// eventfds and shared memory: whatever it does to these it does to the parent and its peers.
class ForkGuard {
 public:
  /// Of the process that calls it.
  ForkGuard();
  bool forked() const {
    return mark_ != nullptr ? mark_->load(std::memory_order_relaxed) != process_
                            : has_other_number();
  }

 private:
  bool has_other_number() const;

  const std::atomic<uint32_t>* mark_;  // null where the kernel cannot blank it
  uint32_t process_;
};

/// Holds on to what must never be deleted, like what a fork has of its parent's, so that leak
/// checkers know of it.
void keep_for_good(const void* object);

/// Deletes what it is given in the process that made it only.
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

/// Owns what reaches beyond its process: what has threads, connections, sleepers, memory that
/// others share. A fork leaves it as it is; its memory goes with the fork. (A shared_ptr takes the
/// same deleter.)
template <class T>
using OwnedWhereMade = std::unique_ptr<T, DeleteWhereMade<T>>;

}  // namespace tutti
