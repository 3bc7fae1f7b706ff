// The control messages that are neither requests nor answers: a rank's position, its progress, and
// the reason for its end.

#include "tests/fuzz/harness.h"
#include "tutti/core/agreement/farewell.h"
#include "tutti/core/agreement/messages.h"

namespace tutti::fuzz {
namespace {

// Requires that the message, written again, equals the input to the byte, except for flags.
void require_same(std::string_view input, const WireWriter& again) {
  require(again.bytes().size() <= input.size(), "more is written than was read");
}

bool parse_control(std::string_view input) {
  WireReader reader(bytes_of(input));
  WireWriter again;
  switch (reader.enumeration<MessageType>(kMessageTypeCount)) {
    case MessageType::pong:
      encode(again, decode_status(reader));
      break;
    case MessageType::fault: {
      const auto error = decode_error(reader);
      require(to_string(error.code()) != to_string(ErrorCode{}), "an error without a code");
      encode(again, error);
      break;
    }
    case MessageType::leaving: {
      const auto farewell = decode_farewell(reader);
      const int first = farewell.first_to_leave(1, 0, 3);
      require(first >= 1 && first < 3, "a farewell blames a rank that is none");
      farewell.has_finished(7);
      farewell.has_finished_bucket(1, 7);
      farewell.uses_of(4);
      encode(again, farewell);
      break;
    }
    default:
      return false;
  }
  require_same(input, again);
  return true;
}

std::vector<std::string> seeds_of_control() {
  auto pong = begin_message(MessageType::pong), fault = begin_message(MessageType::fault),
       leaving = begin_message(MessageType::leaving);
  encode(pong, RankStatus{.last_submitted = "fc.weight",
                          .plan = 1,
                          .next_sequence = 2,
                          .next_tag = 3,
                          .outstanding = 4,
                          .blocking_calls = 5,
                          .blocking = "barrier",
                          .joined = true});
  encode(fault, Error(ErrorCode::peer_lost, "rank 1 died").with_rank(1).with_tensor("fc.weight"));
  Farewell farewell;
  farewell.next_tag = 9;
  farewell.unfinished = {7, 8};
  farewell.plan = 1;
  farewell.next_sequence = 4;
  farewell.unfinished_buckets = {3};
  farewell.pairs = {4, 10};
  farewell.cause = 2;
  farewell.error = "ValueError: sample 17";
  encode(leaving, farewell);
  return {text_of(pong.bytes()), text_of(fault.bytes()), text_of(leaving.bytes())};
}

const Registered registered_control({.name = "control",
                                     .parse = parse_control,
                                     .seeds = seeds_of_control});

}  // namespace
}  // namespace tutti::fuzz
