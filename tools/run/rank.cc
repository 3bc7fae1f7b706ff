#include "tools/run/rank.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::run {

Rank::Rank(int number, std::string host, Child child, bool remote, const std::string& prefix,
           LineOutput::Sink output, LineOutput::Sink errors)
    : number_(number),
      host_(std::move(host)),
      child_(std::move(child)),
      pid_(remote ? 0 : child_.pid()),
      output_(prefix, std::move(output)),
      errors_(prefix, std::move(errors)) {
  if (remote) reader_.emplace(true);
}

void Rank::start(const StartRequest& request) {
  send(encode_frame(FrameKind::start, encode_start(request)));
}

void Rank::give_input(std::string_view bytes) {
  input_ended_ = bytes.empty();
  if (is_remote()) {
    input_on_its_way_ = true;
    send(encode_frame(FrameKind::input, bytes));
  } else if (input_ended_) {
    child_.input.reset();
  } else {
    send(bytes);
  }
}

void Rank::send(std::string_view bytes) {
  to_child_ += bytes;
  write_more();
}

void Rank::write_more() {
  while (has_unwritten()) {
    const auto count = ::write(child_.input.get(), to_child_.data(), to_child_.size());
    if (count >= 0) {
      to_child_.erase(0, static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      child_.input.reset();  // the child no longer reads
    }
  }
}

void Rank::signal(int number) {
  if (is_remote() && !was_killed_)
    send(encode_frame(FrameKind::signal, std::to_string(number)));
  else
    child_.signal(number);
  was_killed_ = was_killed_ || number == SIGKILL;
}

void Rank::print(LineOutput& stream, std::string_view bytes) {
  stream.take(bytes);
  last_lines_.take(bytes);
}

void Rank::print_output(std::string_view bytes) {
  is_remote() ? take_frames(bytes) : print(output_, bytes);
}

void Rank::take_output() {
  std::string bytes;
  if (!read_available(child_.output.get(), bytes)) child_.output.reset();
  print_output(bytes);
}

void Rank::take_errors() {
  std::string bytes;
  if (!read_available(child_.errors.get(), bytes)) child_.errors.reset();
  print(errors_, bytes);
}

void Rank::take_frames(std::string_view bytes) {
  if (!failure_.empty()) return;
  reader_->take(bytes);
  try {
    while (const auto frame = reader_->next()) {
      switch (frame->kind) {
        case FrameKind::output:
          print(output_, frame->payload);
          break;
        case FrameKind::errors:
          print(errors_, frame->payload);
          break;
        case FrameKind::taken:
          input_on_its_way_ = false;
          break;
        case FrameKind::pid:
          pid_ = static_cast<int>(parse_integer(frame->payload, 1, 1 << 30).value_or(0));
          break;
        case FrameKind::end:
          remote_end_ = decode_end(frame->payload);
          break;
        case FrameKind::failure:
          failure_ = frame->payload;
          break;
        case FrameKind::start:
        case FrameKind::signal:
        case FrameKind::input:
          throw Error(ErrorCode::corrupt_data, "a frame that belongs to the other direction");
      }
    }
  } catch (const Error& error) {
    failure_ = error.what();
    child_.signal(SIGKILL);
  }
  if (const auto noise = reader_->take_noise(); !noise.empty()) print(errors_, noise);
}

End Rank::finish() {
  const auto end = child_.reap();
  print_output(drain(child_.output));
  print(errors_, drain(child_.errors));
  output_.finish();
  errors_.finish();
  if (!is_remote()) return end;
  if (remote_end_) return *remote_end_;
  // The connection ended before the rank did, or it was never made.
  if (failure_.empty()) failure_ = fmt::format("the connection to {} {}", host_, end.text());
  return end.failed() ? end : End{.code = 1, .signal = 0};
}

}  // namespace tutti::run
