#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>

#include "tutti/base/descriptor.h"

namespace tutti::run {

/// The launcher is two processes, so that nothing of the job remains if either of them ends, even
/// by kill -9. The front, which the user started, receives signals and passes them on. The keeper,
/// its child, starts and watches the ranks. Both adopt the orphans of their descendants in any
/// process group or session, so the remaining process can end all of them.
class Keeper {
 public:
  /// Forks this process, which must have one thread and have called settle_inheritance(). Returns
  /// in the keeper alone. The front ends inside this call, with the keeper's exit code.
  static Keeper divide();

  /// Becomes readable when the front has passed on a signal, and once the front is gone.
  int orders() const { return orders_.get(); }
  /// Returns the next signal that was passed on, or nothing if there is none yet. Ends this process
  /// and all its descendants if the front is gone.
  std::optional<int> next_order() const;

  /// Becomes readable when a child ended.
  int ends() const { return ends_.get(); }
  /// Reaps adopted processes that have ended. It leaves those for which `is_rank` returns true to
  /// the launcher, which started them and waits for them.
  void reap_adopted(const std::function<bool(pid_t)>& is_rank) const;

 private:
  Keeper(Descriptor orders, Descriptor ends) : orders_(std::move(orders)), ends_(std::move(ends)) {}

  Descriptor orders_, ends_;
};

}  // namespace tutti::run
