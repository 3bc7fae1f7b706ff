// Messages between this node and the other ranks.

#include <fmt/format.h>

#include "tutti/core/agreement/checks.h"
#include "tutti/core/node/members.h"
#include "tutti/core/node/node.h"

namespace tutti {

namespace {

// Returns whether messages of this type concern operations. A rank that has sent its farewell takes
// part in no operation, so it ignores such messages.
bool is_about_operations(MessageType type) {
  switch (type) {
    case MessageType::requests:
    case MessageType::answers:
    case MessageType::resend:
    case MessageType::veto:
    case MessageType::plan_joined:
    case MessageType::plan_failed:
    case MessageType::plan_left:
    case MessageType::pair_left:
    case MessageType::pair_recalled:
      return true;
    case MessageType::ping:
    case MessageType::pong:
    case MessageType::fault:
    case MessageType::leaving:
    case MessageType::timeline:
      break;
  }
  return false;
}

}  // namespace

void Node::send(int rank, std::span<const std::byte> message) {
  posted_ = true;
  if (rank == context_.rank) {
    loopback_.emplace_back(message.begin(), message.end());
    return;
  }
  if (peers_.is_gone(rank)) return;
  const auto type = static_cast<MessageType>(message[0]);
  if (type == MessageType::requests || type == MessageType::answers) ++negotiation_messages_;
  transport_.post(rank, message);
}

void Node::send_to_all(const WireWriter& message) {
  for (int peer = 0; peer < context_.size; ++peer)
    if (peer != context_.rank) send(peer, message.bytes());
}

bool Node::handle_messages(Clock::time_point now) {
  bool moved = false;
  int from = -1;
  while (!is_dead()) {
    if (!loopback_.empty()) {
      const auto message = std::move(loopback_.front());
      loopback_.pop_front();
      handle(context_.rank, message, now);
    } else if (transport_.take(from, message_)) {
      handle(from, message_, now);
    } else if (coordinator_ && phase_ != Phase::closing) {
      coordinator_->answer();
      if (loopback_.empty()) return moved;
    } else {
      return moved;
    }
    moved = true;
  }
  return moved;
}

void Node::handle(int from, std::span<const std::byte> message, Clock::time_point now) {
  if (from != context_.rank) overseer_.heard(from, now);
  try {
    WireReader reader(message);
    const auto type = reader.enumeration<MessageType>(kMessageTypeCount);
    need_of_message(from == 0 || (type != MessageType::answers && type != MessageType::resend),
                    "only rank 0 answers");
    need_of_message(context_.rank == 0 || type != MessageType::timeline,
                    "only rank 0 gathers timelines");
    if (phase_ == Phase::closing && is_about_operations(type)) return;
    handle(type, from, reader, now);
  } catch (const DamagedMessage& error) {
    // Only this error is the sender's fault. Any other exception is a failure of this rank itself.
    fault(Error(ErrorCode::corrupt_data,
                fmt::format(
                    "{} sent rank {} an invalid message: {}. Do all ranks run the same version? {}",
                    describe_rank(context_, from), context_.rank, error.what(),
                    how_to_go_on(context_)))
              .with_rank(from),
          true);
  }
}

void Node::handle(MessageType type, int from, WireReader& reader, Clock::time_point now) {
  switch (type) {
    case MessageType::requests:
      if (coordinator_) coordinator_->on_requests(from, reader, now);
      break;
    case MessageType::plan_joined:
      if (coordinator_) coordinator_->on_plan_joined(from, reader);
      break;
    case MessageType::plan_failed:
      if (coordinator_) coordinator_->on_plan_failed(reader);
      break;
    case MessageType::plan_left:
      if (coordinator_) coordinator_->on_plan_left(from, reader);
      break;
    case MessageType::answers:
      scheduler_->on_answers(reader, now);
      break;
    case MessageType::resend:
      scheduler_->on_resend(reader);
      break;
    case MessageType::veto: {
      Veto veto;
      veto.plan = reader.get<uint32_t>();
      veto.sequence = reader.get<uint64_t>();
      scheduler_->on_veto(veto);
      break;
    }
    case MessageType::pair_left:
      scheduler_->on_pair_left(from, reader);
      break;
    case MessageType::pair_recalled:
      scheduler_->on_pair_recalled(from, reader);
      break;
    case MessageType::ping: {
      auto pong = begin_message(MessageType::pong);
      encode(pong, status());
      send(from, pong.bytes());
      break;
    }
    case MessageType::pong:
      overseer_.told(from, decode_status(reader));
      break;
    case MessageType::fault:
      on_fault(decode_error(reader));
      break;
    case MessageType::leaving:
      on_farewell(from, decode_farewell(reader));
      break;
    case MessageType::timeline:
      gathering_.on_part(from, reader.rest());
      break;
  }
}

void Node::on_fault(Error error) {
  const bool gives_up =
      error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::peer_silent;
  if (gives_up && error.rank() == context_.rank)
    error = Error(error.code(), fmt::format("rank {} was given up by the others: {}", context_.rank,
                                            error.what()))
                .with_rank(context_.rank);
  // This rank has left, and the other ranks could not go on without it.
  if (error.code() == ErrorCode::peer_left && error.rank() == context_.rank) error = closed_error();
  fault(error, false);
}

}  // namespace tutti
