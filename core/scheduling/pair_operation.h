#pragma once

#include "tutti/collectives/executor.h"

namespace tutti {

/// A send or receive of a prepared pair (two ranks that exchange a name without asking rank 0). It
/// is one message, sent directly between the tensors of the two ranks. The receiver sends an empty
/// message to announce that it takes part. The sender is not done before it has received that
/// message. So if one of the ranks does something else instead, neither rank finishes this
/// operation, and nothing is written. Its Run starts the same object again for the next use of the
/// pair.
class PairOperation final : public Operation {
 public:
  void start(Transport& transport, const Collective& collective, uint64_t tag);
  /// Predicts the messages that start() makes this rank send.
  static Traffic predict(const Collective& collective);
  void release() override;
  OperationState advance() override;
  void cancel() override;
  /// Returns whether the peer has not arrived yet, as far as this rank knows.
  bool lacks_ranks() const override { return (sends_ ? ready_ : data_) != 0; }

 private:
  Transport* transport_ = nullptr;
  bool sends_ = false;
  Ticket data_ = 0, ready_ = 0;  // transfers in progress; 0: that transfer has ended
  bool failed_ = false;
};

}  // namespace tutti
