#include "tutti/backends/stream/stream_outlet.h"

#include <array>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

namespace {

using Stage = Transfer::Stage;

// Bounds of the wire list, which holds the frames whose order is final.
constexpr size_t kMaxWireFrames = 8;
constexpr size_t kEnoughWireBytes = 256 << 10;

// The maximum bytes of control messages that wait for a peer that does not read.
constexpr size_t kMaxQueuedControlBytes = 256 << 20;

bool is_data(FrameType type) { return type == FrameType::eager || type == FrameType::data; }

}  // namespace

OutFrame* Outlet::make_frame(const FrameHeader& header) {
  OutFrame* frame = shared_.frames.take();
  frame->type = header.type;
  frame->header = encode_frame(header);
  frame->payload = nullptr;
  frame->payload_bytes = 0;
  frame->written = 0;
  frame->returned = 0;
  frame->transfer = nullptr;
  return frame;
}

void Outlet::release(OutFrame* frame) {
  // A large buffer, left over from one huge message, is freed.
  constexpr size_t kKeep = 64 << 10;
  frame->copy.clear();
  if (frame->copy.capacity() > kKeep) frame->copy = {};
  shared_.frames.give_back(frame);
}

void Outlet::tell(const FrameHeader& header) { urgent_.push(make_frame(header)); }

bool Outlet::post(std::span<const std::byte> message) {
  if (control_bytes_ + message.size() > kMaxQueuedControlBytes) return false;
  OutFrame* frame = make_frame({.type = FrameType::control, .length = message.size()});
  frame->copy.assign(message.begin(), message.end());
  frame->payload = frame->copy.data();
  frame->payload_bytes = frame->copy.size();
  control_bytes_ += message.size();
  urgent_.push(frame);
  return true;
}

void Outlet::grant(Transfer* transfer, Ticket remote) {
  --announced_;
  transfer->remote = remote;
  transfer->stage = Stage::granted;
  granted_.push(transfer);
}

void Outlet::refuse(Transfer* transfer) {
  --announced_;
  // The send ends well although the peer refused the message: the peer would throw away a small
  // message too, without the sender's knowledge.
  transfer->stage = Stage::done;
}

void Outlet::add_credit(uint64_t cost) {
  credit_ += cost;
  if (cost > most_credit_ || credit_ > most_credit_)
    throw Error(ErrorCode::corrupt_data, "it returned more credit than it was given messages");
}

void Outlet::return_credit(uint64_t cost) {
  owed_ += cost;
  if (owed_ < most_credit_ / 2) return;
  tell({.type = FrameType::credit, .length = std::exchange(owed_, 0)});
}

void Outlet::withdraw(Transfer* transfer) {
  tell({.type = FrameType::withdraw,
        .key = transfer->key,
        .tag = transfer->tag,
        .ticket = transfer->ticket()});
}

void Outlet::cancel(Transfer* transfer) {
  switch (transfer->stage) {
    case Stage::fresh:
      fresh_.remove(transfer);
      break;
    case Stage::announced:
      --announced_;
      withdraw(transfer);
      break;
    case Stage::granted:
    case Stage::closing: {
      OutFrame* frame = wire_.front();
      while (frame && frame->transfer != transfer) frame = frame->next;
      if (frame && frame->written > 0) return leave_alone(frame);
      if (frame) {
        if (frame->type == FrameType::eager) credit_ += eager_cost(frame->payload_bytes);
        owed_ += frame->returned;
        wire_.remove(frame);
        --wire_frames_;
        wire_bytes_ -= frame->bytes();
        if (frame->type == FrameType::data) withdraw(transfer);
        release(frame);
      } else {
        granted_.remove(transfer);
        withdraw(transfer);
      }
      break;
    }
    default:
      return;
  }
  transfer->stage = Stage::failed;
}

// Separates a frame that is partly written from its send, which was cancelled. The rest of the
// frame must still be written. So its payload is copied, because the caller gets the message's
// memory back.
void Outlet::leave_alone(OutFrame* frame) {
  frame->copy.assign(frame->payload, frame->payload + frame->payload_bytes);
  frame->payload = frame->copy.data();
  Transfer* transfer = std::exchange(frame->transfer, nullptr);
  transfer->moved += frame->payload_bytes;
  transfer->stage = transfer->moved == transfer->bytes ? Stage::done : Stage::failed;
  if (transfer->stage == Stage::failed) withdraw(transfer);
}

bool Outlet::may_start() const {
  if (fresh_.empty()) return false;
  const size_t bytes = fresh_.front()->bytes;
  return announced_ < kMaxAnnounced || (bytes <= most_eager_ && eager_cost(bytes) <= credit_);
}

OutFrame* Outlet::start(Transfer* transfer) {
  fresh_.remove(transfer);
  FrameHeader header{.key = transfer->key,
                     .verdict = transfer->verdict,
                     .length = transfer->bytes,
                     .tag = transfer->tag};
  const uint64_t cost = eager_cost(transfer->bytes);
  if (transfer->bytes <= most_eager_ && cost <= credit_) {
    credit_ -= cost;
    header.type = FrameType::eager;
    header.ticket = std::exchange(owed_, 0);
    OutFrame* frame = make_frame(header);
    frame->payload = transfer->source;
    frame->payload_bytes = transfer->bytes;
    frame->returned = header.ticket;
    frame->transfer = transfer;
    transfer->stage = Stage::closing;
    return frame;
  }
  ++announced_;
  header.type = FrameType::announce;
  header.ticket = transfer->ticket();
  transfer->stage = Stage::announced;
  return make_frame(header);
}

OutFrame* Outlet::data_of(Transfer* transfer) {
  granted_.remove(transfer);
  const size_t count = std::min(transfer->bytes - transfer->moved, kMaxDataBytes);
  OutFrame* frame =
      make_frame({.type = FrameType::data, .length = count, .ticket = transfer->remote});
  frame->payload = transfer->source + transfer->moved;
  frame->payload_bytes = count;
  frame->transfer = transfer;
  transfer->stage = Stage::closing;
  return frame;
}

bool Outlet::put_next_on_wire() {
  OutFrame* frame = nullptr;
  if (!urgent_.empty()) {
    frame = urgent_.pop();
  } else if (may_start() && (granted_.empty() || !granted_turn_)) {
    frame = start(fresh_.front());
    granted_turn_ = true;
  } else if (!granted_.empty()) {
    frame = data_of(granted_.front());
    granted_turn_ = false;
  } else if (leaving_ && !said_goodbye_) {
    frame = make_frame({.type = FrameType::goodbye});
    said_goodbye_ = true;
  } else {
    return false;
  }
  wire_.push(frame);
  ++wire_frames_;
  wire_bytes_ += frame->bytes();
  return true;
}

bool Outlet::flush(Channel& channel) {
  bool moved = false;
  while (true) {
    while (wire_frames_ < kMaxWireFrames && wire_bytes_ < kEnoughWireBytes && put_next_on_wire()) {
    }
    if (wire_.empty()) return moved;
    std::array<iovec, 2 * kMaxWireFrames> parts;
    size_t count = 0;
    for (OutFrame* frame = wire_.front(); frame; frame = frame->next) {
      const size_t header_done = std::min(frame->written, kFrameBytes);
      const size_t payload_done = frame->written - header_done;
      if (header_done < kFrameBytes)
        parts[count++] = {frame->header.data() + header_done, kFrameBytes - header_done};
      if (payload_done < frame->payload_bytes)
        parts[count++] = {const_cast<std::byte*>(frame->payload) + payload_done,
                          frame->payload_bytes - payload_done};
    }
    const size_t taken = channel.write({parts.data(), count});
    if (taken == 0) return moved;
    moved = true;
    written(taken);
  }
}

void Outlet::written(size_t bytes) {
  bytes_written_ += bytes;
  while (bytes > 0) {
    OutFrame* frame = wire_.front();
    const size_t count = std::min(bytes, frame->bytes() - frame->written);
    frame->written += count;
    bytes -= count;
    if (frame->written < frame->bytes()) return;
    wire_.remove(frame);
    --wire_frames_;
    wire_bytes_ -= frame->bytes();
    frame_through(frame);
  }
}

void Outlet::frame_through(OutFrame* frame) {
  auto& counters = shared_.counters;
  if (!is_data(frame->type)) {
    ++counters.control_messages_sent;
    counters.control_bytes_sent += frame->bytes();
    if (frame->type == FrameType::control) control_bytes_ -= frame->payload_bytes;
    return release(frame);
  }
  counters.bytes_sent += frame->payload_bytes;
  Transfer* transfer = frame->transfer;
  if (transfer == nullptr) return release(frame);  // the send has been cancelled
  transfer->moved += frame->payload_bytes;
  if (transfer->moved == transfer->bytes) {
    ++counters.messages_sent;
    transfer->stage = Stage::done;
  } else {
    transfer->stage = Stage::granted;
    granted_.push(transfer);
  }
  release(frame);
}

void Outlet::clear() {
  while (OutFrame* frame = urgent_.pop()) release(frame);
  while (OutFrame* frame = wire_.pop()) release(frame);
  while (fresh_.pop()) {
  }
  while (granted_.pop()) {
  }
  wire_frames_ = wire_bytes_ = control_bytes_ = 0;
  leaving_ = false;
}

}  // namespace tutti
