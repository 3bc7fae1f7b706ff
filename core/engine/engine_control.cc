// The part of the engine that talks with other ranks: control messages, and timelines at the end.

#include <fmt/format.h>

#include "tutti/core/agreement/checks.h"
#include "tutti/core/engine/engine.h"

namespace tutti {

namespace {

// A rank that has said its farewell takes part in no operation: what its peers say of one comes too
// late for it.
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

void Engine::send(int rank, std::span<const std::byte> message) {
  posted_ = true;
  if (rank == context_.rank) {
    loopback_.emplace_back(message.begin(), message.end());
    return;
  }
  if (gone_[static_cast<size_t>(rank)]) return;
  const auto type = static_cast<MessageType>(message[0]);
  if (type == MessageType::requests || type == MessageType::answers) ++negotiation_messages_;
  transport_.post(rank, message);
}

bool Engine::handle_messages() {
  bool moved = false;
  int from = -1;
  while (!is_dead_) {
    if (!loopback_.empty()) {
      const auto message = std::move(loopback_.front());
      loopback_.pop_front();
      handle(context_.rank, message);
    } else if (transport_.take(from, message_)) {
      handle(from, message_);
    } else if (coordinator_ && !is_shut_) {
      coordinator_->answer();
      if (loopback_.empty()) return moved;
    } else {
      return moved;
    }
    moved = true;
  }
  return moved;
}

void Engine::handle(int from, std::span<const std::byte> message) {
  const auto now = Clock::now();
  if (from != context_.rank) liveness_.heard(from, now);
  try {
    WireReader reader(message);
    const auto type = reader.enumeration<MessageType>(kMessageTypeCount);
    need_of_message(from == 0 || (type != MessageType::answers && type != MessageType::resend),
                    "only rank 0 answers");
    need_of_message(context_.rank == 0 || type != MessageType::timeline,
                    "only rank 0 gathers timelines");
    if (is_shut_ && is_about_operations(type)) return;
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
        scheduler_->on_answers(reader);
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
      case MessageType::ping: {
        auto pong = begin_message(MessageType::pong);
        encode(pong, status());
        send(from, pong.bytes());
        break;
      }
      case MessageType::pong:
        statuses_[static_cast<size_t>(from)] = decode_status(reader);
        break;
      case MessageType::fault: {
        Error error = decode_error(reader);
        const bool gives_up =
            error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::peer_silent;
        if (gives_up && error.rank() == context_.rank)
          error = Error(error.code(), fmt::format("rank {} was given up by the others: {}",
                                                  context_.rank, error.what()))
                      .with_rank(context_.rank);
        fault(error, false);
        break;
      }
      case MessageType::leaving:
        on_farewell(from, decode_farewell(reader));
        break;
      case MessageType::timeline: {
        const auto rest = reader.rest();
        auto& events = timelines_[static_cast<size_t>(from)];
        if (!rest.empty()) {
          events.append(reinterpret_cast<const char*>(rest.data()), rest.size());
        } else if (!timeline_done_[static_cast<size_t>(from)]) {
          timeline_done_[static_cast<size_t>(from)] = true;
          --timelines_missing_;
        }
        break;
      }
    }
  } catch (const DamagedMessage& error) {
    // Only this is the sender's doing; what else is thrown here is this rank's own failure.
    fault(
        Error(ErrorCode::corrupt_data,
              fmt::format("{} sent rank {} a message that cannot be: {}. Do all ranks run the same "
                          "version? {}",
                          describe_rank(from), context_.rank, error.what(), how_to_go_on()))
            .with_rank(from),
        true);
  }
}

std::string Engine::describe_rank(int rank) const {
  const auto& place = context_.places[static_cast<size_t>(rank)];
  return fmt::format("rank {} (host {}, pid {})", rank, place.host_name, place.pid);
}

// Rank 0 gathers what ranks 1 and above recorded and writes one file; a rank that cannot send,
// because the communicator broke, writes a file of its own.
void Engine::collect_timelines(double seconds) {
  const auto own = timeline_.stop();
  try {
    if (seconds <= 0 && context_.size > 1) {
      write_timeline(fmt::format("{}.rank{}", options_.timeline, context_.rank), {own});
      return;
    }
    const auto deadline = Deadline::after(seconds);
    if (context_.rank != 0) {
      constexpr size_t kPart = 1 << 20;
      for (size_t at = 0; at < own.size(); at += kPart) {
        auto part = begin_message(MessageType::timeline);
        for (const char c : std::string_view(own).substr(at, kPart)) part.put(c);
        send(0, part.bytes());
        backend_->progress();
      }
      send(0, begin_message(MessageType::timeline).bytes());
      return;
    }
    while (timelines_missing_ > 0 && !deadline.passed()) {
      if (step()) continue;
      if (arm()) sleep(std::min(deadline.poll_milliseconds(), 100));
    }
    timelines_[0] = own;
    write_timeline(options_.timeline, timelines_);
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("rank {}: {}", context_.rank, error.what()));
  }
}

}  // namespace tutti
