#include "tools/run/remote_protocol.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::run {

namespace {

constexpr size_t kHeaderBytes = 5;

Error damaged(std::string_view what) {
  return {ErrorCode::corrupt_data,
          fmt::format("the connection to the other host carries something other than a {}", what)};
}

// Takes the text before the next zero byte. None of the texts can contain a zero byte.
std::string take_text(std::string_view& rest) {
  const auto end = rest.find('\0');
  if (end == rest.npos) throw damaged("start request");
  std::string text(rest.substr(0, end));
  rest.remove_prefix(end + 1);
  return text;
}

}  // namespace

std::string encode_frame(FrameKind kind, std::string_view payload) {
  std::string frame(1, static_cast<char>(kind));
  for (int shift = 24; shift >= 0; shift -= 8)
    frame += static_cast<char>((payload.size() >> shift) & 0xff);
  frame += payload;
  return frame;
}

std::optional<Frame> FrameReader::next() {
  if (!in_frames_) {
    const auto found = buffer_.find(kPreamble);
    // The end of the buffer may be the beginning of a preamble, so it is kept.
    const auto noise =
        found != buffer_.npos ? found : buffer_.size() - std::min(buffer_.size(), kPreamble.size());
    noise_ += buffer_.substr(0, noise);
    buffer_.erase(0, found != buffer_.npos ? found + kPreamble.size() : noise);
    in_frames_ = found != buffer_.npos;
    if (!in_frames_) return {};
  }
  if (buffer_.size() < kHeaderBytes) return {};
  size_t length = 0;
  for (size_t i = 1; i < kHeaderBytes; ++i)
    length = length << 8 | static_cast<unsigned char>(buffer_[i]);
  constexpr std::string_view kKinds = "RSIOTEPXF";
  if (length > kLongestPayload || kKinds.find(buffer_[0]) == kKinds.npos) throw damaged("frame");
  if (buffer_.size() < kHeaderBytes + length) return {};
  Frame frame{static_cast<FrameKind>(buffer_[0]), buffer_.substr(kHeaderBytes, length)};
  buffer_.erase(0, kHeaderBytes + length);
  return frame;
}

std::string FrameReader::take_noise() { return std::exchange(noise_, {}); }

std::string encode_start(const StartRequest& request) {
  std::string text;
  const auto add = [&](std::string_view word) { (text += word) += '\0'; };
  add(request.secret);
  add(request.folder);
  add(request.reads ? "reads" : "");
  add(request.bind ? "bind" : "");
  add(std::to_string(request.variables.size()));
  for (const auto& [name, value] : request.variables) {
    add(name);
    add(value);
  }
  for (const auto& word : request.arguments) add(word);
  return text;
}

StartRequest decode_start(std::string_view text) {
  StartRequest request;
  request.secret = take_text(text);
  request.folder = take_text(text);
  request.reads = take_text(text) == "reads";
  request.bind = take_text(text) == "bind";
  const auto count = parse_integer(take_text(text), 0, 1'000'000);
  if (!count) throw damaged("start request");
  for (int64_t i = 0; i < *count; ++i) {
    const auto name = take_text(text);
    request.variables[name] = take_text(text);
  }
  while (!text.empty()) request.arguments.push_back(take_text(text));
  if (request.arguments.empty()) throw damaged("start request");
  return request;
}

std::string encode_end(const End& end) {
  return end.signal != 0 ? fmt::format("signal {}", end.signal) : fmt::format("code {}", end.code);
}

End decode_end(std::string_view text) {
  const auto words = split_text(text, ' ');
  const auto number = words.size() == 2 ? parse_integer(words[1], 0, 255) : std::nullopt;
  if (!number || (words[0] != "signal" && words[0] != "code")) throw damaged("end of a rank");
  End end;
  (words[0] == "signal" ? end.signal : end.code) = static_cast<int>(*number);
  return end;
}

}  // namespace tutti::run
