// The messages between tutti-run and `tutti-run --remote-rank` through ssh, including greetings.

#include "tools/run/remote_protocol.h"

#include "tests/fuzz/harness.h"

namespace tutti::fuzz {
namespace {

using run::FrameKind;
using run::FrameReader;

// The first byte sets whether a greeting may come first, and the length of the pieces in which the
// input arrives.
bool parse_remote_protocol(std::string_view input) {
  const auto how = take_number_of(input, 1);
  const bool wants_preamble = (how & 1) != 0;
  const size_t piece = (how >> 1) + 1;
  FrameReader reader(wants_preamble);
  std::string again, noise;
  bool read = false;
  for (size_t at = 0; at < input.size(); at += piece) {
    reader.take(input.substr(at, piece));
    while (const auto frame = reader.next()) {
      again += encode_frame(frame->kind, frame->payload);
      read = true;
      if (frame->kind == FrameKind::start) {
        const auto request = run::decode_start(frame->payload);
        const auto same = run::decode_start(run::encode_start(request));
        require(same.secret == request.secret && same.folder == request.folder &&
                    same.variables == request.variables && same.arguments == request.arguments &&
                    same.reads == request.reads && same.bind == request.bind,
                "a start request does not come back");
      }
      if (frame->kind == FrameKind::end)
        require(run::encode_end(run::decode_end(frame->payload)).size() <= frame->payload.size(),
                "the end of a rank does not come back");
    }
    noise += reader.take_noise();
  }
  if (!wants_preamble) require(input.starts_with(again), "frames do not come back");
  require(noise.size() <= input.size(), "more noise than there was");
  return read;
}

std::vector<std::string> seeds_of_remote_protocol() {
  const auto start = run::encode_start(
      {"secret", "/home/a b", {{"A", "x=y"}, {"B", ""}}, {"./program", "--flag"}, true, true});
  const auto all = encode_frame(FrameKind::start, start) + encode_frame(FrameKind::input, "abc") +
                   encode_frame(FrameKind::signal, "15") + encode_frame(FrameKind::pid, "17") +
                   encode_frame(FrameKind::end, run::encode_end({.code = 3})) +
                   encode_frame(FrameKind::end, run::encode_end({.signal = 9}));
  return {std::string(1, '\xfe') + all, std::string(1, '\4') + all,
          std::string(1, '\xff') + "Welcome\n" + std::string(FrameReader::kPreamble) + all};
}

const Registered registered_remote_protocol({.name = "remote_protocol",
                                             .parse = parse_remote_protocol,
                                             .seeds = seeds_of_remote_protocol});

}  // namespace
}  // namespace tutti::fuzz
