#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tools/run/child.h"
#include "tools/run/host_list.h"
#include "tools/run/output.h"
#include "tools/run/remote_protocol.h"

namespace tutti::run {

/// One rank as the launcher sees it, on this host or on another one through ssh.
class Rank {
 public:
  /// `host` is only for messages. If `remote`, `child` is ssh, and start() starts the rank.
  /// `prefix` is put before each line that the rank writes. Finished lines go to `output` and
  /// `errors`.
  Rank(int number, std::string host, Child child, bool remote, const std::string& prefix,
       LineOutput::Sink output, LineOutput::Sink errors);

  int number() const { return number_; }
  const std::string& host() const { return host_; }
  /// Returns the rank's own pid. It is 0 until a remote host has sent it.
  int pid() const { return pid_; }
  Child& child() { return child_; }
  bool is_remote() const { return reader_.has_value(); }

  /// Sends a remote rank's first frame.
  void start(const StartRequest& request);
  /// Passes a signal on. A second SIGKILL kills ssh instead, because ssh may hang.
  void signal(int number);
  /// Gives the rank input to read. No bytes mean the end of its input.
  void give_input(std::string_view bytes);
  /// Returns whether the rank may get more input: it still reads, and has taken all input so far.
  bool takes_input() const {
    return child_.input && to_child_.empty() && !input_ended_ && !input_on_its_way_;
  }
  /// Returns whether bytes wait to be written to the child.
  bool has_unwritten() const { return child_.input && !to_child_.empty(); }
  void write_more();
  /// Reads and prints the output that is available.
  void take_output();
  void take_errors();
  /// Returns how the rank ended, once the child has ended.
  End finish();
  const LastLines& last_lines() const { return last_lines_; }
  /// Returns why a remote rank could not be started or was lost. Empty: neither happened.
  const std::string& failure() const { return failure_; }

 private:
  void send(std::string_view bytes);
  void print(LineOutput& stream, std::string_view bytes);
  void print_output(std::string_view bytes);
  void take_frames(std::string_view bytes);

  const int number_;
  const std::string host_;
  Child child_;
  int pid_;
  LineOutput output_, errors_;
  LastLines last_lines_;
  std::string to_child_;
  bool input_ended_ = false;
  bool input_on_its_way_ = false;      // remote only: not acknowledged yet
  std::optional<FrameReader> reader_;  // remote only
  std::optional<End> remote_end_;
  bool was_killed_ = false;
  std::string failure_;
};

}  // namespace tutti::run
