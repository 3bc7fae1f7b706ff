#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/core/launch/exchange.h"

namespace tutti {

namespace {

// This is longer than any valid answer to the commands used here.
constexpr size_t kLongestLine = 4096;
constexpr const char* kPmiKey = "tutti-meeting";

// A connection that exchanges lines of "name=value name=value". Each command gets one answer.
class PmiConnection {
 public:
  PmiConnection(int descriptor, Deadline deadline) : descriptor_(descriptor), deadline_(deadline) {}

  using Answer = std::map<std::string, std::string>;

  // Sends `command` and returns the answer. The answer's cmd must be `expected`.
  Answer ask(const std::string& command, const std::string& expected) {
    send_line("cmd=" + command + "\n");
    const auto line = read_line();
    Answer answer;
    for (const auto& word : split_text(line, ' '))
      if (const auto equals = word.find('='); equals != word.npos)
        answer.emplace(word.substr(0, equals), word.substr(equals + 1));
    if (answer["cmd"] != expected)
      throw Error(
          ErrorCode::corrupt_data,
          fmt::format("the launcher's PMI server answered \"{:.60}\" to \"{}\" (expected {})", line,
                      command, expected));
    if (const auto code = answer.find("rc"); code != answer.end() && code->second != "0")
      throw Error(ErrorCode::unavailable,
                  fmt::format("the launcher's PMI server refused \"{}\": {:.60}", command, line));
    return answer;
  }

 private:
  static Error closed() {
    return {ErrorCode::unavailable,
            "the launcher's PMI server closed its connection; has the launcher ended?"};
  }

  void wait_for(short event) {
    pollfd entry{descriptor_, event, 0};
    while (true) {
      const int ready = ::poll(&entry, 1, deadline_.poll_milliseconds());
      if (ready > 0) return;
      if (ready < 0 && errno != EINTR)
        throw system_error("cannot wait for the launcher's PMI server", errno);
      if (deadline_.passed())
        throw Error(ErrorCode::timeout,
                    "the launcher's PMI server did not answer before the deadline: not all ranks "
                    "made a Communicator, or TUTTI_CONNECT_TIMEOUT is too short");
    }
  }

  void send_line(std::string_view line) {
    while (!line.empty()) {
      wait_for(POLLOUT);
      const auto sent = ::send(descriptor_, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) throw closed();
      if (sent < 0)
        throw Error(ErrorCode::unavailable,
                    fmt::format("PMI_FD={} does not lead to the launcher: {}", descriptor_,
                                std::strerror(errno)));
      line.remove_prefix(static_cast<size_t>(sent));
    }
  }

  std::string read_line() {
    while (true) {
      if (const auto end = buffer_.find('\n'); end != buffer_.npos) {
        auto line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      if (buffer_.size() >= kLongestLine)
        throw Error(ErrorCode::corrupt_data,
                    fmt::format("the launcher's PMI server sent a line of more than {} bytes",
                                kLongestLine));
      wait_for(POLLIN);
      char bytes[512];
      const auto got = ::recv(descriptor_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) throw closed();
      buffer_.append(bytes, static_cast<size_t>(got));
    }
  }

  const int descriptor_;
  const Deadline deadline_;
  std::string buffer_;
};

}  // namespace

std::string share_over_pmi(int descriptor, int rank, std::string_view text, Deadline deadline) {
  // The launcher serves only one PMI client per process.
  if (::dlsym(RTLD_DEFAULT, "MPI_Init") != nullptr)
    throw Error(ErrorCode::unavailable,
                "this program is linked with MPI, which needs the launcher's PMI for itself; give "
                "the ranks another place to meet: TUTTI_STORE=file:///folder");
  PmiConnection server(descriptor, deadline);
  server.ask("init pmi_version=1 pmi_subversion=1", "response_to_init");
  const auto space = server.ask("get_my_kvsname", "my_kvsname")["kvsname"];
  if (rank == 0)
    server.ask(fmt::format("put kvsname={} key={} value={}", space, kPmiKey, text), "put_result");
  server.ask("barrier_in", "barrier_out");
  auto shared =
      server.ask(fmt::format("get kvsname={} key={}", space, kPmiKey), "get_result")["value"];
  server.ask("finalize", "finalize_ack");
  return shared;
}

}  // namespace tutti
