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

/// A rank's end as a launcher saw it.
struct Death {
  LaunchedRank who;
  int pid = 0;
  int signal = 0;  // 0: it exited
  int code = 0;
  std::string host = {};
  bool failed() const { return signal != 0 || code != 0; }
};

/// The deaths that a reader of the job's record knows.
struct KnownDeaths {
  std::vector<Death> deaths;  // in the order in which they were seen
  bool is_all = false;        // no more can be read: no store or no thread
};

/// Appends a death to the record in the job's store. Any process.
void append_death(Store& store, const Death& death);

/// Reads the deaths of a job in the order in which they were seen. A look makes one request, and
/// one more for each new death. It skips text that is not a record of a death. One thread at a
/// time.
class DeathLog {
 public:
  explicit DeathLog(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  /// Returns all deaths so far. Throws Error(unavailable) if the store is gone.
  const std::vector<Death>& look();

 private:
  const std::shared_ptr<Store> store_;
  int64_t read_ = 0;
  std::vector<Death> deaths_;
};

/// A rank that closes because of an error of its own writes that into the job's store before its
/// peers learn of it. The first record stays. If many ranks fail, the launcher finds there which
/// one failed first. Any process.
void write_first_error(Store& store, LaunchedRank who);
/// Returns nothing if there is no such record.
std::optional<LaunchedRank> read_first_error(Store& store);

/// Returns words of the form name=value, separated by blanks: "rank=3 incarnation=0 pid=4711
/// signal=9 host=b" or "... code=1 host=b".
std::string encode_death(const Death& death);
/// Returns nothing for text that is not such a record.
std::optional<Death> decode_death(const std::string& text);

/// Returns "was killed by signal 9 (Killed)" or "exited with code 1".
std::string describe_death(const Death& death);

}  // namespace tutti
