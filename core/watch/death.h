#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/backends/store.h"

namespace tutti {

/// Identifies a process for its launcher: the rank that the launcher gave it, and the number of
/// times that the launcher had started this rank before.
struct LaunchedRank {
  int rank = -1;
  int incarnation = 0;
  bool operator==(const LaunchedRank&) const = default;
};

/// The end of a rank's process, as a launcher saw it.
struct Death {
  LaunchedRank who;
  int pid = 0;
  int signal = 0;  // 0: the process exited
  int code = 0;
  std::string host = {};
  bool failed() const { return signal != 0 || code != 0; }
};

/// The deaths that a reader of the job's record has read so far.
struct KnownDeaths {
  std::vector<Death> deaths;  // in the order in which the launchers saw them
  bool is_all = false;        // no more can be read, because there is no store or no thread
};

/// Appends a death to the record in the job's store. Any process may call it.
void append_death(Store& store, const Death& death);

/// Reads the deaths of a job in the order in which the launchers saw them. look() makes one
/// request, and one more for each new death. Text that is not a record of a death is skipped. Only
/// one thread at a time may use it.
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

/// Writes into the job's store that this rank closes because of its own error. The rank calls this
/// before its peers learn of the error. Only the first record is kept. If many ranks fail, the
/// record shows the launcher which one failed first. Any process may call it.
void write_first_error(Store& store, LaunchedRank who);
/// Returns the record of write_first_error(), or nothing if there is none.
std::optional<LaunchedRank> read_first_error(Store& store);

/// Encodes a death as text of the form name=value, separated by blanks: "rank=3 incarnation=0
/// pid=4711 signal=9 host=b" or "... code=1 host=b".
std::string encode_death(const Death& death);
/// Decodes a text of encode_death(). Returns nothing if the text is not the record of a death.
std::optional<Death> decode_death(const std::string& text);

/// Returns "was killed by signal 9 (Killed)" or "exited with code 1".
std::string describe_death(const Death& death);

}  // namespace tutti
