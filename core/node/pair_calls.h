#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "tutti/collectives/executor.h"
#include "tutti/core/scheduling/peers.h"

namespace tutti {

/// The error of the operation called `name`: its text names the operation where it speaks of the
/// communicator alone, and its tensor is that name unless it has one.
Error named(const Error& error, std::string_view name);

/// The sends and receives of one blocking call, as one operation: over when each of them is. One
/// whose other rank has left is cancelled once what that rank sent before is used up; the others go
/// on, because their ranks wait for them. Owned by the call, which lets go of the parts before it
/// gives the token back.
class PairCalls final : public Operation {
 public:
  static constexpr size_t kMost = 2;
  explicit PairCalls(const Peers& peers) : peers_(peers) {}

  /// `peer`: the other rank. A null operation is done.
  void add(std::string_view name, int peer, OperationPtr operation);

  void release() override;
  OperationState advance() override;
  void cancel() override;
  /// The first part's that failed with a reason.
  const Error* failure() const override;
  bool lacks_ranks() const override;

 private:
  struct Part {
    std::string_view name;
    int peer = -1;
    OperationPtr operation;
    OperationState state = OperationState::done;
    std::optional<Error> left;  // its other rank has, and it is cancelled
  };
  void advance(Part& part);

  const Peers& peers_;
  std::array<Part, kMost> parts_;
  size_t count_ = 0;
  mutable std::optional<Error> why_;
};

}  // namespace tutti
