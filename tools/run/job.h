#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tools/run/command_line.h"
#include "tools/run/deaths.h"
#include "tools/run/front.h"
#include "tools/run/host_list.h"
#include "tools/run/rank.h"
#include "tutti/backends/store.h"

namespace tutti::run {

/// The ranks of one run, the store through which they find each other, and the loop that starts the
/// ranks and watches them until the last has ended. It has one thread. Signals arrive as events,
/// and it blocks only in poll.
class Job {
 public:
  /// Starts to serve the store. Throws Error.
  Job(const Request& request, const Keeper& keeper);

  /// Returns the launcher's exit code. Throws Error, or CannotStart.
  int run();

 private:
  void start_next();
  void start_local(const Seat& seat, Variables variables);
  void start_remote(const Seat& seat, Variables variables);
  LineOutput::Sink sink(const Seat& seat, Outlet& outlet, const char* ending);
  void add_rank(const Seat& seat, std::string host, const Command& command, bool remote);
  bool is_done();
  bool reads_input() const;
  void wait_for_events();
  int poll_milliseconds() const;
  void reap_adopted();
  void take_input();
  void take_orders();
  void take_end(Rank& rank);
  void signal_all(int number);
  std::string names_of_ranks_left() const;
  void escalate();
  void tell(const std::string& text);
  void tell_progress();
  void tell_loss(const std::string& place, int error_number);
  void report();

  const Request request_;
  const Keeper& keeper_;
  std::string secret_;
  Descriptor secret_file_;
  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<Store> store_;
  std::vector<Host> hosts_;
  std::vector<bool> here_;  // for each of hosts_: true if it is this host
  std::vector<Seat> seats_;
  Variables own_, shared_;
  Outlet output_{STDOUT_FILENO}, errors_{STDERR_FILENO};
  std::vector<std::unique_ptr<Rank>> ranks_;  // the ranks that were started
  std::unique_ptr<Deaths> deaths_;
  bool input_ended_ = false;
  bool told_of_threads_ = false;
  bool reported_ = false;
  bool lost_output_ = false;
  int last_told_ = 0;  // the signal of the last escalation that was reported
  Deadline next_progress_ = Deadline::never();
  // The deadline for the remaining output, once the job was asked to end.
  Deadline last_words_ = Deadline::never();
};

}  // namespace tutti::run
