#include "tutti/backends/order/sequencer.h"

#include <algorithm>

namespace tutti {

namespace {

// This tag is above all tags of operations.
constexpr uint64_t kTag = uint64_t{0xA1} << 56;
// The number of dropped tags that are kept. It exceeds the number of operations that all ranks can
// run at the same time.
constexpr size_t kMostDropped = 4096;

}  // namespace

Sequencer::Sequencer(Transport& transport)
    : rank_(transport.rank()), size_(transport.size()), links_(transport, kTag) {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && (rank_ == 0 || peer == 0)) links_.open(peer);
}

void Sequencer::send(int to, const Message& message) {
  if (to == rank_) return on_message(rank_, message);
  links_.send(to, message);
}

void Sequencer::ready(uint64_t tag, uint32_t verdict, int peer) {
  send(0, {tag, Message::Kind::ready, verdict, 0, peer});
}

void Sequencer::cancel(uint64_t tag) { send(0, {tag, Message::Kind::cancel, 0, 0, -1}); }

bool Sequencer::progress() {
  return links_.progress([this](int from, const Message& message) { on_message(from, message); });
}

std::optional<Sequencer::Call> Sequencer::take() {
  if (calls_.empty()) return {};
  const auto call = calls_.front();
  calls_.pop_front();
  return call;
}

bool Sequencer::is_hopeless(int peer) const {
  if (rank_ != 0) return links_.is_gone(0);
  return peer >= 0 ? links_.is_gone(peer) : links_.has_lost_peer();
}

void Sequencer::on_message(int from, const Message& message) {
  switch (message.kind) {
    case Message::Kind::ready:
      return on_ready(from, message);
    case Message::Kind::cancel:
      return on_cancel(from, message.tag);
    case Message::Kind::answer:
      calls_.push_back({message.tag, message.number, static_cast<Answer>(message.value)});
  }
}

bool Sequencer::was_dropped(uint64_t tag) const {
  return std::find(dropped_.rbegin(), dropped_.rend(), tag) != dropped_.rend();
}

void Sequencer::on_ready(int from, const Message& message) {
  if (was_dropped(message.tag)) return;  // the `drop` answer is already on its way
  auto& waiting = waiting_[message.tag];
  waiting.verdict |= message.value;
  if (message.peer >= 0) {
    waiting.first = from;
    waiting.second = message.peer;
  }
  if (++waiting.arrived < (message.peer >= 0 ? 2 : size_)) return;
  const Call call{message.tag, next_number_++, waiting.verdict == 0 ? Answer::run : Answer::veto};
  const auto [arrived, verdict, first, second] = waiting;
  waiting_.erase(message.tag);
  for (int rank = 0; rank < size_; ++rank)
    if (first < 0 || rank == first || rank == second) answer(rank, call);
}

void Sequencer::on_cancel(int from, uint64_t tag) {
  const Call call{tag, 0, Answer::drop};
  if (was_dropped(tag)) return answer(from, call);
  waiting_.erase(tag);
  dropped_.push_back(tag);
  if (dropped_.size() > kMostDropped) dropped_.pop_front();
  for (int rank = 0; rank < size_; ++rank) answer(rank, call);
}

void Sequencer::answer(int to, const Call& call) {
  send(to, {call.tag, Message::Kind::answer, static_cast<uint32_t>(call.answer), call.number, -1});
}

}  // namespace tutti
