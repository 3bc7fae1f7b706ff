#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tools/run/child.h"
#include "tools/run/host_list.h"
#include "tools/run/output.h"
#include "tools/run/remote_protocol.h"

namespace tutti::run {

/// One rank as the launcher sees it, on this host or behind ssh.
class Rank {
 public:
  /// `host`: for people. `remote`: `child` is ssh, and the rank is started by a frame. `prefix`:
  /// before each line that it writes; finished lines go to `output` and `errors`.
  Rank(int number, std::string host, Child child, bool remote, const std::string& prefix,
       LineOutput::Sink output, LineOutput::Sink errors);

  int number() const { return number_; }
  const std::string& host() const { return host_; }
  /// Of the rank itself; 0 until another host has told.
  int pid() const { return pid_; }
  Child& child() { return child_; }
  bool is_remote() const { return reader_.has_value(); }

  /// A remote rank's first frame.
  void start(const StartRequest& request);
  /// Passes it on. A second SIGKILL ends ssh instead, which may hang.
  void signal(int number);
  /// For the rank to read; without a byte: the end of its input.
  void give_input(std::string_view bytes);
  /// Whether it may be given more: it reads, and has taken what it was given.
  bool takes_input() const {
    return child_.input && to_child_.empty() && !input_ended_ && !input_on_its_way_;
  }
  /// Whether something waits to be written to the child, and writes what goes at once.
  bool has_unwritten() const { return child_.input && !to_child_.empty(); }
  void write_more();
  /// Read and print what there is.
  void take_output();
  void take_errors();
  /// The child has ended: the rank's end.
  End finish();
  const LastLines& last_lines() const { return last_lines_; }
  /// Why a remote rank could not be started or is lost to view, if so.
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
  bool input_on_its_way_ = false;      // remote only: not yet acknowledged
  std::optional<FrameReader> reader_;  // remote only
  std::optional<End> remote_end_;
  bool was_killed_ = false;
  std::string failure_;
};

}  // namespace tutti::run
