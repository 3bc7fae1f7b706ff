#include "tools/run/remote_rank.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "tools/run/child.h"
#include "tools/run/output.h"
#include "tools/run/remote_protocol.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::run {

namespace {

void send(FrameKind kind, std::string_view payload) {
  write_all(STDOUT_FILENO, encode_frame(kind, payload));
}

// The launcher's next frame; nothing if it is gone.
std::optional<Frame> wait_for_frame(FrameReader& reader) {
  while (true) {
    if (auto frame = reader.next()) return frame;
    std::string bytes;
    if (!read_available(STDIN_FILENO, bytes)) return {};
    reader.take(bytes);
  }
}

Child start(const StartRequest& request, const Descriptor& secret) {
  Command command;
  command.arguments = request.arguments;
  command.folder = request.folder;
  command.variables = own_variables();
  for (const auto& [name, value] : request.variables) command.variables[name] = value;
  command.inherited = secret.get();
  command.variables["TUTTI_SECRET_FD"] = std::to_string(secret.get());
  return Child(command);
}

// Passes on what there is.
void forward(Descriptor& stream, FrameKind kind) {
  std::string bytes;
  if (!read_available(stream.get(), bytes)) stream.reset();
  if (!bytes.empty()) send(kind, bytes);
}

void take_orders(FrameReader& reader, const Child& child) {
  while (const auto frame = reader.next())
    if (const auto number = parse_integer(frame->payload, 1, SIGRTMAX))
      if (frame->kind == FrameKind::signal) child.signal(static_cast<int>(*number));
}

void serve(FrameReader& reader, Child& child) {
  bool launcher_is_there = true;
  while (true) {
    std::array<pollfd, 4> entries = {{{child.descriptor(), POLLIN, 0},
                                      {launcher_is_there ? STDIN_FILENO : -1, POLLIN, 0},
                                      {child.output ? child.output.get() : -1, POLLIN, 0},
                                      {child.errors ? child.errors.get() : -1, POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;
    if (entries[2].revents) forward(child.output, FrameKind::output);
    if (entries[3].revents) forward(child.errors, FrameKind::errors);
    if (entries[1].revents) {
      std::string bytes;
      launcher_is_there = read_available(STDIN_FILENO, bytes);
      reader.take(bytes);
      take_orders(reader, child);
      if (!launcher_is_there) child.signal(SIGKILL);
    }
    if (entries[0].revents) break;
  }
  const auto end = child.reap();
  // Its last words are in the pipes; nobody is left to write more.
  send(FrameKind::output, drain(child.output));
  send(FrameKind::errors, drain(child.errors));
  send(FrameKind::end, encode_end(end));
}

}  // namespace

int serve_remote_rank() {
  ::signal(SIGPIPE, SIG_IGN);
  // ssh may be hung up; the end of the input says so, and the rank is then ended first.
  ::signal(SIGHUP, SIG_IGN);
  write_all(STDOUT_FILENO, FrameReader::kPreamble);
  FrameReader reader(false);
  try {
    const auto frame = wait_for_frame(reader);
    if (!frame) return 1;
    if (frame->kind != FrameKind::start)
      throw Error(ErrorCode::corrupt_data, "the launcher did not begin with a start request");
    const auto request = decode_start(frame->payload);
    const auto secret = hand_over_secret(request.secret);
    auto child = start(request, secret);
    send(FrameKind::pid, std::to_string(child.pid()));
    serve(reader, child);
    return 0;
  } catch (const Error& error) {
    send(FrameKind::failure, error.what());
    return 1;
  }
}

}  // namespace tutti::run
