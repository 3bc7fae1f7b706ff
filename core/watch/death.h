#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/backends/store.h"

namespace tutti {

/// A process as its launcher names it: the rank that it was started as, and how often that rank
/// had been started before.
struct LaunchedRank {
  int rank = -1;
  int incarnation = 0;
  bool operator==(const LaunchedRank&) const = default;
};

/// What a launcher saw of a rank's end.
struct Death {
  LaunchedRank who;
  int pid = 0;
  int signal = 0;  // 0: it exited
  int code = 0;
  std::string host = {};
  bool failed() const { return signal != 0 || code != 0; }
};

/// Holds what a reader of the job's record knows of it.
struct KnownDeaths {
  std::vector<Death> deaths;  // in the order in which they were seen
  bool is_all = false;        // no more deaths will be known: no store or no thread
};

/// Writes a death into the job's store, after those that are there. Any process.
void append_death(Store& store, const Death& death);

/// Reads the deaths of a job in the order in which they were seen: one request a look, and one for
/// each death that is new. What is no record of a death is passed over. One thread at a time.
class DeathLog {
 public:
  explicit DeathLog(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  /// All so far. Throws Error(unavailable) if the store is gone.
  const std::vector<Death>& look();

 private:
  const std::shared_ptr<Store> store_;
  int64_t read_ = 0;
  std::vector<Death> deaths_;
};

/// A rank that closes because of an error of its own writes that into the job's store before its
/// peers hear of it; the first one stays. A launcher that sees many ranks fail knows by it where it
/// began. Any process.
void write_first_error(Store& store, LaunchedRank who);
/// Nothing if no rank wrote one, or what is there is no such record.
std::optional<LaunchedRank> read_first_error(Store& store);

/// Words of the form name=value, separated by blanks: "rank=3 incarnation=0 pid=4711 signal=9
/// host=b" or "... code=1 host=b".
std::string encode_death(const Death& death);
/// Nothing for text that is no such record.
std::optional<Death> decode_death(const std::string& text);

/// "was killed by signal 9 (Killed)", "exited with code 1".
std::string describe_death(const Death& death);

}  // namespace tutti
