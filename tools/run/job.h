#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tools/run/command_line.h"
#include "tools/run/deaths.h"
#include "tools/run/rank.h"
#include "tutti/backends/store.h"

namespace tutti::run {

/// The ranks of one run, the store in which they meet, and the loop that watches them until the
/// last has ended. One thread; signals come as events.
class Job {
 public:
  /// Serves the store and starts the ranks. Throws Error.
  explicit Job(const Request& request);

  /// Returns the launcher's exit code.
  int run();

 private:
  void start_ranks(const Request& request, const std::vector<Host>& hosts,
                   const std::vector<bool>& here, const std::string& store);
  void wait_for_events();
  void take_signals();
  void take_end(Rank& rank);
  void signal_all(int number);
  void report() const;

  std::string secret_;
  Descriptor secret_file_;
  Descriptor signals_;
  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<Store> store_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<Deaths> deaths_;
};

}  // namespace tutti::run
