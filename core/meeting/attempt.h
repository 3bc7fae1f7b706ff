#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/store.h"
#include "tutti/backends/store/told_failure.h"
#include "tutti/core/meeting/places.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// How long a rank that has its communicator waits at most for the store while it tidies up there.
inline constexpr double kLeaveSeconds = 5;

/// Everything that a new communicator needs beside its options.
struct Membership {
  std::shared_ptr<Store> root;     // the job's store
  std::shared_ptr<void> listener;  // on rank 0 if it serves the store: see ServedStore
  std::string path;                // prefix of this attempt's keys in the root store
  PlaceRecord own;                 // what this rank writes there
  Deadline deadline = Deadline::never();
  Clock::time_point begin = Clock::now();  // when this rank began to wait for the others
  // The next three are set if the ranks are members of another communicator. For each member, in
  // rank order, they hold the rank as which it was launched and its number among the job's ranks on
  // its host. `inheritance` is what the other communicator's backend hands to this one's.
  std::vector<LaunchedRank> members;
  std::vector<int> local_ranks;
  std::shared_ptr<Inheritance> inheritance;
  // Set in the same case. Returns the error that ended the other communicator, once there is one.
  // The error's rank is the rank among these members, or -1 if it is not a member. The error ends
  // every wait of the attempt.
  std::function<std::optional<Error>()> parents_end;
  // Set for a first communicator (see core/meeting/rounds.h). `round` is its round. Deaths before
  // index `first_death` are older than the round: they are ignored until the members are known.
  int64_t round = -1;
  size_t first_death = 0;
};

/// The store no longer has the attempt's keys. The others went on or gave the attempt up while this
/// rank was stopped or cut off.
class ForgottenAttempt : public Error {
 public:
  explicit ForgottenAttempt(int own);
};

/// One attempt of some ranks to become a communicator, under its own keys in the store. It succeeds
/// for all of them or fails for all of them, because the first rank that writes the outcome
/// decides. It fails if a rank dies meanwhile, or if the communicator that these ranks are members
/// of ends. One thread makes the calls; any thread may call store().
class Attempt {
 public:
  static std::shared_ptr<Attempt> begin(const Options& options, const Membership& membership);
  Attempt(const Attempt&) = delete;

  /// The store by which the ranks exchange data while they connect. Its waits end once the attempt
  /// has failed.
  const std::shared_ptr<Store>& store() const { return watched_; }
  /// Publishes where this rank runs, and returns where all ranks run once all have published it.
  /// Throws Error(timeout | version | mismatch | peer_lost | unavailable), which names the rank
  /// that is missing, dead or different. This and the two calls below may also throw
  /// ForgottenAttempt.
  std::vector<Place> meet();
  /// Publishes that this rank has its connections. Returns once all ranks have theirs.
  void all_connected();
  /// Ends the attempt for all ranks. Throws the cause: the first death, the failure that another
  /// rank published first, or this error.
  [[noreturn]] void fail(const Error& error);

  static std::string place_key(int rank);
  /// Key, in a failed attempt of a first communicator, of the number of deaths known at that time.
  static constexpr auto* kDeathsKey = "deaths";

 private:
  Attempt(const Options& options, const Membership& membership);
  void look();
  void report();
  void throw_first_death();
  int rank_of(const Death& death);
  void keep_deaths() noexcept;
  std::vector<Place> read_places();
  void gather_places();
  bool is_own_deadline(const Error& error) const;
  void throw_if_forgotten() const;
  std::vector<int> missing(const char* part) const;
  /// Returns how long this rank has waited, for a message. It is rounded to 0.01 s, because the
  /// deadline began a moment earlier or later: 0.299 is shown as 0.3.
  double seconds_waited() const;

  const Options options_;
  const Membership membership_;
  const std::shared_ptr<Store> store_;  // of this attempt alone
  const ToldFailure failure_;
  std::shared_ptr<Store> watched_;
  // The fields below are used by one thread at a time, in look().
  DeathLog deaths_;
  std::vector<LaunchedRank> members_;  // empty until they are known
  double report_after_;                // seconds
  const char* awaited_ = "place";      // key that a missing rank has not yet written
};

}  // namespace tutti
