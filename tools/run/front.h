#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>

#include "tutti/base/descriptor.h"

namespace tutti::run {

/// The launcher is two processes, so that however either of them ends, kill -9 included, nothing of
/// the job is left. The front, which the user started, takes the signals and passes them on; the
/// keeper, its child, starts and watches the ranks. Both adopt what their descendants leave behind,
/// in whatever process group or session, so that the one that is left can end all of it.
class Keeper {
 public:
  /// Divides this process, which must have one thread and have called settle_inheritance(). It
  /// returns in the keeper alone: the front ends here, with the keeper's code.
  static Keeper divide();

  /// Readable when the front has passed on a signal, and once it is gone.
  int orders() const { return orders_.get(); }
  /// The number of the next signal that was passed on; nothing if there is none yet. Ends this
  /// process and all its descendants if the front is gone.
  std::optional<int> next_order() const;

  /// Readable when a child ended.
  int ends() const { return ends_.get(); }
  /// Takes away ended processes that were adopted. The launcher waits itself for those of which
  /// `is_rank` says that it started them.
  void reap_adopted(const std::function<bool(pid_t)>& is_rank) const;

 private:
  Keeper(Descriptor orders, Descriptor ends) : orders_(std::move(orders)), ends_(std::move(ends)) {}

  Descriptor orders_, ends_;
};

}  // namespace tutti::run
