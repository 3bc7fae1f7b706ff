#pragma once

#include "tutti/collectives/executor.h"

namespace tutti {

/// A send or receive of a prepared pair: one message, straight from and to the user's memory. Its
/// receiver says by an empty one that it takes part, and its sender is not done before it has heard
/// so: if either of the two is to do something else instead, neither has finished this, and nothing
/// was written. Its Run keeps it, and starts it again for the next use.
class PairOperation final : public Operation {
 public:
  void start(Transport& transport, const Collective& collective, uint64_t tag);
  /// What start() makes this rank send.
  static Traffic predict(const Collective& collective);
  void release() override;
  OperationState advance() override;
  void cancel() override;
  /// The peer has not come, as far as this rank knows.
  bool lacks_ranks() const override { return (sends_ ? ready_ : data_) != 0; }

 private:
  Transport* transport_ = nullptr;
  bool sends_ = false;
  Ticket data_ = 0, ready_ = 0;  // 0: it is over
  bool failed_ = false;
};

}  // namespace tutti
