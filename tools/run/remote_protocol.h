#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/run/child.h"

namespace tutti::run {

/// Messages between the launcher and `tutti-run --remote-rank` on another host, over ssh's standard
/// input and output. A frame is a kind, a length and a payload of that length. The end of the input
/// means that the launcher is gone.
enum class FrameKind : char {
  start = 'R',   // to the remote side, first: a StartRequest
  signal = 'S',  // to the remote side: a number
  input = 'I',   // to the remote side: input of the rank; no bytes: its end
  output = 'O',  // from the remote side: output of the rank
  taken = 'T',   // from the remote side: the rank has read its input
  errors = 'E',
  pid = 'P',     // from the remote side: a number
  end = 'X',     // from the remote side, last: "code 1" or "signal 9"
  failure = 'F'  // from the remote side, last: why the program could not start
};

struct Frame {
  FrameKind kind = FrameKind::failure;
  std::string payload;
};

std::string encode_frame(FrameKind kind, std::string_view payload);

/// Splits a stream into frames. It does no I/O.
class FrameReader {
 public:
  /// Skips everything before kPreamble, because a remote shell may print a greeting. take_noise()
  /// returns the skipped text.
  explicit FrameReader(bool wants_preamble) : in_frames_(!wants_preamble) {}

  void take(std::string_view bytes) { buffer_ += bytes; }
  /// Returns the next complete frame, if any. Throws Error(corrupt_data) if the bytes are not a
  /// frame.
  std::optional<Frame> next();
  std::string take_noise();

  static constexpr std::string_view kPreamble = "\ntutti-run remote rank, protocol 2\n";
  static constexpr size_t kLongestPayload = 4 << 20;

 private:
  bool in_frames_;
  std::string buffer_;
  std::string noise_;
};

/// Everything that the other host needs to start a rank. The secret is sent only here.
struct StartRequest {
  std::string secret;
  std::string folder;
  Variables variables;  // added to the other host's own
  std::vector<std::string> arguments;
  bool reads = false;  // the rank's standard input comes in frames; otherwise it is empty
  bool bind = false;   // bind the rank to its share of that host's cores
};
std::string encode_start(const StartRequest& request);
/// Throws Error(corrupt_data).
StartRequest decode_start(std::string_view text);

std::string encode_end(const End& end);
End decode_end(std::string_view text);

}  // namespace tutti::run
