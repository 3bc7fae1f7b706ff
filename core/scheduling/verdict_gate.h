#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/backends/backend.h"

namespace tutti {

/// Ahead of an operation of a plan whose own messages do not tell every rank every verdict: an
/// allreduce of one byte that does. The operation, whose tag is the next one, starts when all ranks
/// are known to run it, and is over with that allreduce if one vetoes. Its Run keeps it, and starts
/// it again in the next step.
class VerdictGate final : public Operation {
 public:
  void start(Backend& backend, const Collective& collective, const Launch& launch);
  /// What start() sends ahead.
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
