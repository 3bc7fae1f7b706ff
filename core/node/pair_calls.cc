#include "tutti/core/node/pair_calls.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

Error named(const Error& error, std::string_view name) {
  name = name.substr(0, name.find('\n'));  // cuts off the peer that entry_key() may append
  if (!error.tensor().empty() || name.empty()) return error;
  const bool is_prefixed =
      error.code() == ErrorCode::peer_left || error.code() == ErrorCode::closed;
  Error own = is_prefixed ? Error(error.code(), fmt::format("\"{}\": {}", name, error.what()))
                                .with_rank(error.rank())
                          : error;
  return own.with_tensor(name);
}

void PairCalls::add(std::string_view name, int peer, OperationPtr operation) {
  if (!operation) return;
  parts_.at(count_++) = {name, peer, std::move(operation), OperationState::pending, {}};
}

void PairCalls::release() {
  for (auto& part : parts_) part.operation = {};
}

void PairCalls::advance(Part& part) {
  if (part.state != OperationState::pending) return;
  part.state = part.operation->advance();
  if (part.state != OperationState::pending || part.left) return;
  const auto* departure = peers_.departure_of(part.peer);
  if (departure == nullptr) return;
  // All data that the other rank wrote before it left has arrived by now.
  part.state = part.operation->advance();
  if (part.state != OperationState::pending) return;
  part.left = departure->error;
  part.operation->cancel();
  part.state = part.operation->advance();
}

OperationState PairCalls::advance() {
  auto over = OperationState::done;
  bool is_pending = false;
  for (auto& part : parts_) {
    advance(part);
    is_pending |= part.state == OperationState::pending;
    if (over == OperationState::done) over = part.state;
  }
  return is_pending ? OperationState::pending : over;
}

void PairCalls::cancel() {
  for (auto& part : parts_)
    if (part.state == OperationState::pending) part.operation->cancel();
}

const Error* PairCalls::failure() const {
  for (const auto& part : parts_) {
    if (part.state != OperationState::failed) continue;
    const auto* reason = part.left ? &*part.left : part.operation->failure();
    if (reason == nullptr) continue;
    why_ = named(*reason, part.name);
    return &*why_;
  }
  return nullptr;
}

bool PairCalls::lacks_ranks() const {
  return std::ranges::any_of(parts_, [](const Part& part) {
    return part.state == OperationState::pending && part.operation->lacks_ranks();
  });
}

}  // namespace tutti
