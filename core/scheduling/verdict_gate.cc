#include "tutti/core/scheduling/verdict_gate.h"

namespace tutti {

namespace {

Collective one_byte(std::byte* byte) {
  static constexpr int64_t kOne[] = {1};
  Collective collective;
  collective.kind = CollectiveKind::allreduce;
  collective.dtype = DataType::u8;
  collective.op = ReduceOp::max;
  collective.send_counts = kOne;
  collective.input = collective.output = byte;
  return collective;
}

}  // namespace

void VerdictGate::start(Backend& backend, const Collective& collective, const Launch& launch) {
  backend_ = &backend;
  collective_ = collective;
  launch_ = launch;
  ++launch_.tag;
  cancelled_ = false;
  Launch ahead;
  ahead.tag = launch.tag;
  ahead.verdict = launch.verdict;
  gate_ = backend.start(one_byte(&agreed_), ahead);
}

Traffic VerdictGate::predict(Backend& backend, uint64_t tag) {
  std::byte byte{};
  Launch ahead;
  ahead.tag = tag;
  return backend.predict(one_byte(&byte), ahead);
}

void VerdictGate::release() {
  gate_.reset();
  behind_.reset();
}

OperationState VerdictGate::advance() {
  if (gate_) {
    const auto state = gate_->advance();
    if (state != OperationState::done) return state;
    gate_.reset();
    // All ranks now run the operation. So it starts on this rank too, even if cancel() was called
    // meanwhile.
    behind_ = backend_->start(collective_, launch_);
    if (cancelled_) behind_->cancel();
  }
  return behind_->advance();
}

void VerdictGate::cancel() {
  cancelled_ = true;
  (gate_ ? *gate_ : *behind_).cancel();
}

}  // namespace tutti
