// The frames of a StreamTransport (memory, shm, tcp). One peer sends the input while receives and
// sends of every kind are under way.

#include <algorithm>
#include <memory>

#include "tests/fuzz/harness.h"
#include "tutti/backends/stream/frame.h"
#include "tutti/backends/stream/stream_transport.h"

namespace tutti::fuzz {
namespace {

// The peer's end of the stream. All input is there from the beginning, and all output is accepted.
class InputChannel final : public Channel {
 public:
  explicit InputChannel(std::string_view input) : input_(input) {}
  size_t write(std::span<const iovec> parts) override {
    size_t total = 0;
    for (const auto& part : parts) total += part.iov_len;
    return total;
  }
  size_t read(std::span<std::byte> bytes) override {
    const size_t count = std::min(bytes.size(), input_.size());
    std::copy_n(bytes_of(input_).begin(), count, bytes.begin());
    input_.remove_prefix(count);
    return count;
  }
  bool arm(bool) override { return input_.empty(); }
  void watch(Poller&) override {}
  std::string_view route() const override { return "input"; }

 private:
  std::string_view input_;
};

constexpr uint64_t kWanted = 1, kLongWanted = 2, kSent = 3, kDiscarded = 4;
constexpr size_t kWantedBytes = 16;
// So long that the peer must grant credit before it is sent.
constexpr size_t kLongBytes = kMaxEagerBytes + 1;

struct Tickets {
  Ticket wanted, long_wanted, sent;
};

Tickets begin_transfers(StreamTransport& transport) {
  static std::vector<std::byte> target(kLongBytes), source(kLongBytes);
  Tickets tickets{};
  tickets.wanted = transport.irecv(1, kWanted, 0, std::span(target).first(kWantedBytes));
  tickets.long_wanted = transport.irecv(1, kLongWanted, 0, target);
  tickets.sent = transport.isend(1, {.tag = kSent}, source);
  transport.discard(kDiscarded, kDiscarded);
  return tickets;
}

StreamTransport open_transport(std::string_view input) {
  std::vector<std::unique_ptr<Channel>> channels(2);
  channels[1] = std::make_unique<InputChannel>(input);
  return {0, std::move(channels)};
}

bool parse_frames(std::string_view input) {
  auto transport = open_transport(input);
  begin_transfers(transport);
  while (transport.progress()) {
  }
  int from = -1;
  std::vector<std::byte> message;
  while (transport.take(from, message))
    require(message.size() <= input.size(), "a control message is longer than all that came");
  const auto event = transport.take_event();
  return input.size() >= kFrameBytes && (!event || event->kind == PeerEvent::Kind::left);
}

std::string frame_text(const FrameHeader& header, std::string_view payload = {}) {
  return text_of(encode_frame(header)).append(payload);
}

std::vector<std::string> seeds_of_frames() {
  auto transport = open_transport({});
  const auto tickets = begin_transfers(transport);
  const std::string payload(kWantedBytes, 'x');
  const auto eager = [&](uint64_t tag) {
    return frame_text({.type = FrameType::eager, .length = kWantedBytes, .tag = tag}, payload);
  };
  const auto announce = frame_text(
      {.type = FrameType::announce, .length = kLongBytes, .tag = kLongWanted, .ticket = 7});
  return {
      eager(kWanted) + eager(9) + eager(kDiscarded),
      announce + frame_text({.type = FrameType::data,
                             .length = kWantedBytes,
                             .tag = kLongWanted,
                             .ticket = tickets.long_wanted},
                            payload),
      frame_text({.type = FrameType::announce, .length = 64, .tag = 9, .ticket = 8}) +
          frame_text({.type = FrameType::withdraw, .tag = 9, .ticket = 8}),
      frame_text({.type = FrameType::grant, .tag = 5, .ticket = tickets.sent}),
      frame_text({.type = FrameType::refuse, .ticket = tickets.sent}),
      frame_text({.type = FrameType::control, .length = kWantedBytes}, payload) +
          frame_text({.type = FrameType::goodbye}),
  };
}

// A frame's header allocates its message, within the credit that this rank gave.
const Registered registered_frames({.name = "frames",
                                    .parse = parse_frames,
                                    .seeds = seeds_of_frames,
                                    .most_bytes = 3 * kMostCredit});

}  // namespace
}  // namespace tutti::fuzz
