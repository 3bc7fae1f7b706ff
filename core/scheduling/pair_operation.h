#pragma once

#include "tutti/collectives/executor.h"

namespace tutti {

/// A send or receive of a prepared pair: one message, straight from and to the user's memory. The
/// receiver sends an empty message to announce that it takes part, and the sender is not done
/// before it has received that. So if either rank does something else instead, neither has finished
/// this operation, and nothing was written. Its Run keeps it and starts it again for the next use.
class PairOperation final : public Operation {
 public:
  void start(Transport& transport, const Collective& collective, uint64_t tag);
  /// Returns what start() makes this rank send.
  static Traffic predict(const Collective& collective);
  void release() override;
  OperationState advance() override;
  void cancel() override;
  /// Returns whether the peer has not arrived, as far as this rank knows.
  bool lacks_ranks() const override { return (sends_ ? ready_ : data_) != 0; }

 private:
  Transport* transport_ = nullptr;
  bool sends_ = false;
  Ticket data_ = 0, ready_ = 0;  // 0: this transfer is over
  bool failed_ = false;
};

}  // namespace tutti
