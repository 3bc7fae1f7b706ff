#include "tutti/backends/shared/sequencer.h"

#include <algorithm>
#include <span>
#include <utility>

namespace tutti {

namespace {

// Beyond all tags of operations.
constexpr uint64_t kTag = uint64_t{0xA1} << 56;
// More than the operations that all ranks can have under way.
constexpr size_t kMostDropped = 4096;

}  // namespace

Sequencer::Sequencer(Transport& transport)
    : transport_(transport),
      rank_(transport.rank()),
      size_(transport.size()),
      links_(static_cast<size_t>(size_)) {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && (rank_ == 0 || peer == 0)) listen(peer);
}

void Sequencer::listen(int peer) {
  auto& link = links_[static_cast<size_t>(peer)];
  link.ticket = transport_.irecv(peer, kTag, link.next_received++,
                                 std::as_writable_bytes(std::span(&link.message, 1)));
}

void Sequencer::send(int to, const Message& message) {
  if (to == rank_) return on_message(rank_, message);
  auto& link = links_[static_cast<size_t>(to)];
  if (link.is_gone) return;
  auto& out = outgoing_.emplace_back(Outgoing{message, 0});
  out.ticket =
      transport_.isend(to, {kTag, link.next_sent++, 0}, std::as_bytes(std::span(&out.message, 1)));
}

void Sequencer::ready(uint64_t tag, uint32_t verdict, int peer) {
  send(0, {tag, Message::Kind::ready, verdict, 0, peer});
}

void Sequencer::cancel(uint64_t tag) { send(0, {tag, Message::Kind::cancel, 0, 0, -1}); }

bool Sequencer::progress() {
  bool moved = false;
  // Messages to one peer leave in order; of several peers one may be slow.
  while (!outgoing_.empty() &&
         (outgoing_.front().ticket == 0 ||
          transport_.test(outgoing_.front().ticket) != TransferState::pending))
    outgoing_.pop_front();
  for (int peer = 0; peer < size_; ++peer) {
    auto& link = links_[static_cast<size_t>(peer)];
    while (link.ticket != 0) {
      const auto state = transport_.test(link.ticket);
      if (state == TransferState::pending) break;
      moved = true;
      link.ticket = 0;
      if (state == TransferState::failed) {
        link.is_gone = true;
        break;
      }
      const auto message = link.message;
      listen(peer);
      on_message(peer, message);
    }
  }
  return moved;
}

std::optional<Sequencer::Call> Sequencer::take() {
  if (calls_.empty()) return {};
  const auto call = calls_.front();
  calls_.pop_front();
  return call;
}

bool Sequencer::is_hopeless(int peer) const {
  if (rank_ != 0) return links_[0].is_gone;
  if (peer >= 0) return links_[static_cast<size_t>(peer)].is_gone;
  return std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.is_gone; });
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
  if (was_dropped(message.tag)) return;  // the answer is on its way
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
