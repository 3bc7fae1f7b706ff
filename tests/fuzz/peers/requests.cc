// The requests of ranks to the coordinator, and their messages about plans. Whatever ranks send,
// they must be able to read the coordinator's answers.

#include "tests/fuzz/peers/agreement.h"

namespace tutti::fuzz {
namespace {

// The input is a list of messages: a rank, and the message as a part.
bool parse_requests(std::string_view input) {
  const auto options = agreement_options();
  std::vector<std::string> told;  // the messages to rank 0
  Coordinator coordinator(options, kAgreeing, [&](int rank, std::span<const std::byte> message) {
    if (rank == 0) told.push_back(text_of(message));
  });
  auto read_all = [&, cache = NameCache(options.cache_capacity)]() mutable {
    for (const auto& message : told) {
      if (message[0] == static_cast<char>(MessageType::resend)) continue;
      try {
        read_answers(message, cache, options);
      } catch (const NotAskedFor&) {  // in this harness the ranks do have such tensors, because the
                                      // input sets the length
      } catch (const Error& error) {
        throw Finding(std::string("a rank cannot read the coordinator's answer: ") + error.what());
      }
    }
  };
  const Clock::time_point now{};
  bool taken = false;
  try {
    while (!input.empty()) {
      const auto rank = static_cast<int>(take_number_of(input, 1) % kAgreeing);
      WireReader reader(bytes_of(take_part(input)));
      switch (reader.enumeration<MessageType>(kMessageTypeCount)) {
        case MessageType::requests:
          coordinator.on_requests(rank, reader, now);
          break;
        case MessageType::plan_joined:
          coordinator.on_plan_joined(rank, reader);
          break;
        case MessageType::plan_failed:
          coordinator.on_plan_failed(reader);
          break;
        case MessageType::plan_left:
          coordinator.on_plan_left(rank, reader);
          break;
        case MessageType::leaving:
          coordinator.on_left(rank, Error(ErrorCode::peer_left, "left"), 0);
          break;
        default:
          throw DamagedMessage("not for the coordinator");
      }
      coordinator.answer();
      coordinator.waiting();
      taken = true;
    }
  } catch (const Error&) {
    read_all();
    throw;
  }
  read_all();
  return taken;
}

std::string said_by(int rank, const WireWriter& message) {
  return static_cast<char>(rank) + as_part(text_of(message.bytes()));
}

std::string asked_by_all(const std::vector<Request>& requests) {
  std::string text;
  for (int rank = 0; rank < kAgreeing; ++rank) {
    auto message = begin_message(MessageType::requests);
    for (auto request : requests) {
      if (request.signature.kind == CollectiveKind::send && rank == 2) continue;
      if (request.signature.kind == CollectiveKind::send && rank == 1) {
        request.signature.kind = CollectiveKind::recv;
        request.signature.root = 0;
      }
      encode_request(message, request, NameCache(0));
    }
    text += said_by(rank, message);
  }
  return text;
}

std::vector<std::string> seeds_of_requests() {
  std::vector<std::string> seeds;
  for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
    if (static_cast<CollectiveKind>(kind) == CollectiveKind::recv)
      continue;  // requested in the same way as a send
    Request request;
    request.name = "t";
    request.signature = allreduce_signature(6);
    request.signature.kind = static_cast<CollectiveKind>(kind);
    request.signature.root = 1;
    if (request.signature.kind == CollectiveKind::alltoall) request.rows = {1, 2, 3};
    if (request.signature.kind == CollectiveKind::scatter) request.rows = {3, 3, 0};
    seeds.push_back(asked_by_all({request}));
  }
  const Request a{.name = "a", .signature = allreduce_signature(4), .rows = {}};
  Request member = a;
  member.name = "b";
  member.signature.group = "g";
  member.signature.group_size = 1;
  const auto step = asked_by_all({a, member});
  // Two equal steps lock plan 1. A rank follows it, gives it up and leaves it.
  auto joined = begin_message(MessageType::plan_joined),
       left = begin_message(MessageType::plan_left);
  joined.put(uint32_t{1});
  left.put(uint32_t{1});
  auto failed = begin_message(MessageType::plan_failed);
  failed.put(uint32_t{1}).put(uint8_t{0}).put(uint16_t{1}).text("a");
  std::string left_by_all;
  for (int rank = 0; rank < kAgreeing; ++rank) left_by_all += said_by(rank, left);
  seeds.push_back(step + step + step + said_by(0, joined) + said_by(0, failed) + left_by_all +
                  step);
  Request join;
  join.join = true;
  seeds.push_back(asked_by_all({join}) + step);
  seeds.push_back(step + said_by(2, begin_message(MessageType::leaving)) + step);
  return seeds;
}

// The coordinator keeps one request of each rank for each name until all ranks have asked.
const Registered registered_requests({.name = "requests",
                                      .parse = parse_requests,
                                      .seeds = seeds_of_requests,
                                      .most_bytes_per_byte = 1024});

}  // namespace
}  // namespace tutti::fuzz
