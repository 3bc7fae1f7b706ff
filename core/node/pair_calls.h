#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "tutti/collectives/executor.h"
#include "tutti/core/scheduling/peers.h"

namespace tutti {

/// Returns the error as the operation called `name` throws it. A text that speaks of the
/// communicator alone gets the name in front. The error's tensor becomes `name` unless it has one.
Error named(const Error& error, std::string_view name);

/// The sends and receives of one blocking call, as one operation that is over when each of them is.
/// If a part's other rank has left, the part is cancelled once all data from that rank is used up.
/// The other parts go on, because their ranks wait for them. The call owns this and releases the
/// parts before it gives the token back.
class PairCalls final : public Operation {
 public:
  static constexpr size_t kMost = 2;
  explicit PairCalls(const Peers& peers) : peers_(peers) {}

  /// `peer` is the other rank. A null operation counts as done.
  void add(std::string_view name, int peer, OperationPtr operation);

  void release() override;
  OperationState advance() override;
  void cancel() override;
  /// Returns the error of the first part that failed with a reason, or null.
  const Error* failure() const override;
  bool lacks_ranks() const override;

 private:
  struct Part {
    std::string_view name;
    int peer = -1;
    OperationPtr operation;
    OperationState state = OperationState::done;
    std::optional<Error> left;  // set if its other rank has left and it was cancelled
  };
  void advance(Part& part);

  const Peers& peers_;
  std::array<Part, kMost> parts_;
  size_t count_ = 0;
  mutable std::optional<Error> why_;
};

}  // namespace tutti
