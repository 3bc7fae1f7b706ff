#include "tutti/core/scheduling/pair_operation.h"

namespace tutti {

namespace {

enum Key : uint32_t { kData = 0, kReady = 1 };

size_t bytes_of(const Collective& collective) {
  return static_cast<size_t>(collective.send_counts[0] * size_of(collective.dtype));
}

}  // namespace

void PairOperation::start(Transport& transport, const Collective& collective, uint64_t tag) {
  transport_ = &transport;
  sends_ = collective.kind == CollectiveKind::send;
  failed_ = false;
  const int peer = collective.root;
  const size_t bytes = bytes_of(collective);
  if (sends_) {
    data_ = transport.isend(peer, {.tag = tag, .key = kData}, {collective.input, bytes});
    ready_ = transport.irecv(peer, tag, kReady, {});
  } else {
    data_ = transport.irecv(peer, tag, kData, {collective.output, bytes});
    ready_ = transport.isend(peer, {.tag = tag, .key = kReady}, {});
  }
}

Traffic PairOperation::predict(const Collective& collective) {
  return {1, collective.kind == CollectiveKind::send ? bytes_of(collective) : 0};
}

void PairOperation::release() {
  cancel();
  advance();
}

OperationState PairOperation::advance() {
  for (Ticket* ticket : {&data_, &ready_}) {
    if (*ticket == 0) continue;
    const auto state = transport_->test(*ticket);
    if (state == TransferState::pending) continue;
    *ticket = 0;
    if (state == TransferState::done) continue;
    failed_ = true;
    cancel();
  }
  if (data_ != 0 || ready_ != 0) return OperationState::pending;
  return failed_ ? OperationState::failed : OperationState::done;
}

void PairOperation::cancel() {
  for (const Ticket ticket : {data_, ready_})
    if (ticket != 0) transport_->cancel(ticket);
}

}  // namespace tutti
