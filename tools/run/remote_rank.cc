#include "tools/run/remote_rank.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>

#include "tools/run/child.h"
#include "tools/run/front.h"
#include "tools/run/output.h"
#include "tools/run/remote_protocol.h"
#include "tools/run/share.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::run {

namespace {

constexpr double kStartSeconds = 60;  // time for the start request to arrive

// Returns the launcher's first frame. Returns nothing if the launcher is gone, or if a signal asks
// this process to end before the frame arrives.
std::optional<Frame> wait_for_frame(FrameReader& reader, const Keeper& keeper) {
  const auto deadline = Deadline::after(kStartSeconds);
  while (!deadline.passed()) {
    if (auto frame = reader.next()) return frame;
    std::array<pollfd, 2> entries = {{{STDIN_FILENO, POLLIN, 0}, {keeper.orders(), POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), deadline.poll_milliseconds()) < 0) continue;
    if (entries[1].revents && keeper.next_order()) return {};
    std::string bytes;
    if (entries[0].revents && !read_available(STDIN_FILENO, bytes)) return {};
    reader.take(bytes);
  }
  throw Error(ErrorCode::timeout,
              fmt::format("the launcher sent no start request within {} s", kStartSeconds));
}

Child start(const StartRequest& request, const Descriptor& secret) {
  Command command;
  command.has_input = request.reads;
  command.arguments = request.arguments;
  command.folder = request.folder;
  command.variables = own_variables();
  for (const auto& [name, value] : request.variables) command.variables[name] = value;
  command.inherited = secret.get();
  command.variables["TUTTI_SECRET_FD"] = std::to_string(secret.get());
  if (give_share(command, request.bind) && command.variables["TUTTI_LOCAL_RANK"] == "0")
    write_all(STDOUT_FILENO, encode_frame(FrameKind::errors,
                                          fmt::format("tutti-run: {}\n", threads_text(command))));
  return Child(command);
}

// Exchanges frames with the launcher and data with the rank. It blocks only in poll.
class Service {
 public:
  Service(FrameReader& reader, Child child, const Keeper& keeper)
      : reader_(reader), child_(std::move(child)), keeper_(keeper) {}

  void run() {
    send(FrameKind::pid, std::to_string(child_.pid()));
    take_frames();  // frames that came with the start request
    while (!has_ended_) wait_for_events();
    const auto end = child_.reap();
    // The last output is in the pipes. No process of the rank's group is left to write more.
    send(FrameKind::output, drain(child_.output));
    send(FrameKind::errors, drain(child_.errors));
    send(FrameKind::end, encode_end(end));
    while (!launcher_.is_empty()) wait_for_events();
  }

 private:
  void send(FrameKind kind, std::string_view payload) {
    launcher_.write(encode_frame(kind, payload));
  }

  void wait_for_events() {
    const auto read_from = [&](const Descriptor& stream) {
      return stream && !launcher_.is_full() ? stream.get() : -1;
    };
    std::array<pollfd, 8> entries = {
        {{has_ended_ ? -1 : child_.descriptor(), POLLIN, 0},
         {launcher_is_there_ ? STDIN_FILENO : -1, POLLIN, 0},
         {read_from(child_.output), POLLIN, 0},
         {read_from(child_.errors), POLLIN, 0},
         {launcher_.is_empty() ? -1 : STDOUT_FILENO, POLLOUT, 0},
         {child_.input && !input_.empty() ? child_.input.get() : -1, POLLOUT, 0},
         {keeper_.orders(), POLLIN, 0},
         {keeper_.ends(), POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), -1) < 0) return;
    if (entries[2].revents) forward(child_.output, FrameKind::output);
    if (entries[3].revents) forward(child_.errors, FrameKind::errors);
    if (entries[1].revents) take_input();
    if (entries[4].revents) launcher_.flush();
    if (entries[5].revents) give_input();
    if (entries[6].revents) take_orders();
    if (entries[7].revents)
      keeper_.reap_adopted([&](pid_t pid) { return !has_ended_ && pid == child_.pid(); });
    if (entries[0].revents) has_ended_ = true;
  }

  // Sends the bytes that are available.
  void forward(Descriptor& stream, FrameKind kind) {
    std::string bytes;
    if (!read_available(stream.get(), bytes)) stream.reset();
    if (!bytes.empty()) send(kind, bytes);
  }

  void take_input() {
    std::string bytes;
    launcher_is_there_ = read_available(STDIN_FILENO, bytes);
    reader_.take(bytes);
    take_frames();
    if (!launcher_is_there_) signal(SIGKILL);
  }

  void take_frames() {
    while (const auto frame = reader_.next()) {
      if (frame->kind == FrameKind::signal) {
        if (const auto number = parse_integer(frame->payload, 1, SIGRTMAX))
          signal(static_cast<int>(*number));
      } else if (frame->kind == FrameKind::input) {
        input_ended_ = frame->payload.empty();
        input_ += frame->payload;
        give_input();
      }
    }
  }

  void give_input() {
    while (child_.input && !input_.empty()) {
      const auto count = ::write(child_.input.get(), input_.data(), input_.size());
      if (count < 0 && errno == EAGAIN) return;
      if (count < 0 && errno != EINTR) child_.input.reset();  // the rank reads no more
      if (count > 0) input_.erase(0, static_cast<size_t>(count));
    }
    // This input is not acknowledged, so the launcher sends no more.
    if (!child_.input) return input_.clear();
    if (input_ended_) child_.input.reset();
    send(FrameKind::taken, "");
  }

  // SIGHUP is not passed on, because it may only mean that ssh hung up. Then the input ends, which
  // kills the rank.
  void take_orders() {
    while (const auto number = keeper_.next_order())
      if (*number != SIGHUP) signal(*number);
  }

  void signal(int number) {
    if (!has_ended_) child_.signal(number);
  }

  FrameReader& reader_;
  Child child_;
  const Keeper& keeper_;
  Outlet launcher_{STDOUT_FILENO};
  std::string input_;  // the rank's input, until it is written to the rank
  bool input_ended_ = false, launcher_is_there_ = true, has_ended_ = false;
};

}  // namespace

int serve_remote_rank() {
  const auto keeper = Keeper::divide();
  write_all(STDOUT_FILENO, FrameReader::kPreamble);
  FrameReader reader(false);
  const auto failed = [](const Error& error, int code) {
    write_all(STDOUT_FILENO, encode_frame(FrameKind::failure, error.what()));
    return code;
  };
  try {
    const auto frame = wait_for_frame(reader, keeper);
    if (!frame) return 1;
    if (frame->kind != FrameKind::start)
      throw Error(ErrorCode::corrupt_data, "the launcher did not begin with a start request");
    const auto request = decode_start(frame->payload);
    const auto secret = hand_over_secret(request.secret);
    Service(reader, start(request, secret), keeper).run();
    return 0;
  } catch (const CannotStart& error) {
    return failed(error, error.exit_code());
  } catch (const Error& error) {
    return failed(error, 1);
  }
}

}  // namespace tutti::run
