#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "tutti/collectives/executor.h"
#include "tutti/core/scheduling/peers.h"

namespace tutti {

/// Converts an error to the one that the operation called `name` throws. If the text does not name
/// an operation, `name` is put in front. The error's tensor becomes `name` unless it has one.
Error named(const Error& error, std::string_view name);

/// The sends and receives of one blocking call, as one operation. It ends when all parts (one send
/// or receive each) have ended. If a part's peer has left, the part is cancelled once all data from
/// that peer is used up. The other parts go on, because their peers wait for them. The call owns
/// this object and must release the parts before it lets another thread run the engine.
class PairCalls final : public Operation {
 public:
  static constexpr size_t kMost = 2;
  explicit PairCalls(const Peers& peers) : peers_(peers) {}

  /// Adds a part. `peer` is the other rank. A null operation counts as done.
  void add(std::string_view name, int peer, OperationPtr operation);

  void release() override;
  OperationState advance() override;
  void cancel() override;
  /// Returns the error of the first of these sends and receives that failed and has an error, or
  /// null.
  const Error* failure() const override;
  bool lacks_ranks() const override;

 private:
  struct Part {
    std::string_view name;
    int peer = -1;
    OperationPtr operation;
    OperationState state = OperationState::done;
    std::optional<Error> left;  // set if the peer has left and the part was cancelled
  };
  void advance(Part& part);

  const Peers& peers_;
  std::array<Part, kMost> parts_;
  size_t count_ = 0;
  mutable std::optional<Error> why_;
};

}  // namespace tutti
