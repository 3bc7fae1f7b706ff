#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/backends/backend.h"

namespace tutti {

/// A one-byte allreduce before a planned operation. It collects the verdicts (run or veto) of all
/// ranks if the operation's own messages cannot do that. If no rank vetoes, the operation starts
/// with the next tag. If a rank vetoes, the operation never starts. Its Run starts the same object
/// again in the next step.
class VerdictGate final : public Operation {
 public:
  void start(Backend& backend, const Collective& collective, const Launch& launch);
  static Traffic predict(Backend& backend, uint64_t tag);
  void release() override;
  OperationState advance() override;
  void cancel() override;
  const Error* failure() const override { return running().failure(); }
  bool lacks_ranks() const override { return running().lacks_ranks(); }
  bool is_on_its_way() const override { return !gate_ && behind_ && behind_->is_on_its_way(); }

 private:
  const Operation& running() const { return gate_ ? *gate_ : *behind_; }

  Backend* backend_ = nullptr;
  Collective collective_;
  Launch launch_;
  std::byte agreed_{};
  bool cancelled_ = false;
  OperationPtr gate_, behind_;
};

}  // namespace tutti
