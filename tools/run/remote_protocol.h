#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/run/child.h"

namespace tutti::run {

/// What the launcher and `tutti-run --remote-rank` on another host say to each other over ssh's
/// standard input and output: frames of a kind, a length and that many bytes. The end of the input
/// means that the launcher is gone.
enum class FrameKind : char {
  start = 'R',   // to the remote side, first: a StartRequest
  signal = 'S',  // to the remote side: a number
  input = 'I',   // to the remote side: for the rank to read; without a byte: its end
  output = 'O',  // from it: what the rank wrote
  taken = 'T',   // from it: the rank has read what it was given
  errors = 'E',
  pid = 'P',     // from it: a number
  end = 'X',     // from it, last: "code 1" or "signal 9"
  failure = 'F'  // from it, last: why the program could not be started
};

struct Frame {
  FrameKind kind = FrameKind::failure;
  std::string payload;
};

std::string encode_frame(FrameKind kind, std::string_view payload);

/// Takes a stream apart. Pure.
class FrameReader {
 public:
  /// Skips all before kPreamble, because a remote shell may greet; what it skipped is in noise().
  explicit FrameReader(bool wants_preamble) : in_frames_(!wants_preamble) {}

  void take(std::string_view bytes) { buffer_ += bytes; }
  /// Throws Error(corrupt_data) for what is no frame.
  std::optional<Frame> next();
  std::string take_noise();

  static constexpr std::string_view kPreamble = "\ntutti-run remote rank, protocol 2\n";
  static constexpr size_t kLongestPayload = 4 << 20;

 private:
  bool in_frames_;
  std::string buffer_;
  std::string noise_;
};

/// What the other host needs to start a rank; the secret travels only here.
struct StartRequest {
  std::string secret;
  std::string folder;
  Variables variables;  // beside those that are there
  std::vector<std::string> arguments;
  bool reads = false;  // its standard input comes in frames; otherwise it is empty
  bool bind = false;   // to its share of that host's cores
};
std::string encode_start(const StartRequest& request);
/// Throws Error(corrupt_data).
StartRequest decode_start(std::string_view text);

std::string encode_end(const End& end);
End decode_end(std::string_view text);

}  // namespace tutti::run
