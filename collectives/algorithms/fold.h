#pragma once

#include <bit>

#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

/// Lets algorithms for 2^k ranks (the core) run on any number of ranks. Before the core's rounds,
/// each rank from 2^k on sends its data to a partner below 2^k. After the core's rounds the partner
/// sends the result back.
class Fold {
 public:
  explicit Fold(const Problem& problem)
      : core_(static_cast<int>(std::bit_floor(static_cast<unsigned>(problem.size)))),
        rank_(problem.rank),
        partner_(rank_ >= core_ ? rank_ - core_ : rank_ + core_),
        has_partner_(partner_ < problem.size),
        all_{0, problem.counts[0]} {}

  /// Returns 2^k.
  int core() const { return core_; }
  bool is_in_core() const { return rank_ < core_; }

  /// Adds the round before the core's. Returns the position of this rank's operand after that
  /// round.
  SlotElement fold(Builder& builder) const {
    SlotElement operand{Slot::input, 0};
    if (!is_in_core()) {
      builder.send(partner_, Slot::input, all_);
    } else if (has_partner_) {
      const int64_t received = builder.scratch(all_.count);
      builder.recv(partner_, Slot::scratch, {received, all_.count});
      builder.reduce(Slot::input, all_, right_from(received), Slot::scratch, received);
      operand = {Slot::scratch, received};
    }
    builder.next_round();
    return operand;
  }

  /// Adds the round after the core's.
  void unfold(Builder& builder) const {
    if (!is_in_core())
      builder.recv(partner_, Slot::output, all_);
    else if (has_partner_)
      builder.send(partner_, Slot::output, all_);
  }

 private:
  int core_;
  int rank_;
  int partner_;
  bool has_partner_;
  Range all_;
};

}  // namespace tutti
