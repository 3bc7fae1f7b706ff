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

/// The greatest number of seconds that a connected rank waits for the store while it erases keys.
inline constexpr double kLeaveSeconds = 5;

/// Everything that a new communicator needs in addition to its options.
struct Membership {
  std::shared_ptr<Store> root;     // the job's store
  std::shared_ptr<void> listener;  // set on rank 0 if it serves the store: see ServedStore
  std::string path;                // prefix of this attempt's keys in the root store
  PlaceRecord own;                 // this rank's own record in the store
  Deadline deadline = Deadline::never();
  Clock::time_point begin = Clock::now();  // time when this rank began to wait for the other ranks
  // The next three fields are set if the ranks are members of another communicator, their parent.
  // `members` has the launched rank of each member, in rank order. `local_ranks` has the index of
  // each member among the job's ranks on its host. `inheritance` is the object that the parent's
  // backend passes on to the new backend.
  std::vector<LaunchedRank> members;
  std::vector<int> local_ranks;
  std::shared_ptr<Inheritance> inheritance;
  // Set only if there is a parent communicator. Returns the error that ended the parent, if any.
  // The error's rank is the rank among the members, or -1 if that rank is not a member. The error
  // ends every wait of the attempt.
  std::function<std::optional<Error>()> parents_end;
  // Set for a first communicator (see core/meeting/rounds.h). `round` is the index of its round.
  // Deaths with an index below `first_death` occurred before the round. They are ignored until the
  // members are known.
  int64_t round = -1;
  size_t first_death = 0;
};

/// The store does not have the attempt's keys any more. While this rank was stopped or
/// disconnected, the other ranks continued without it or gave the attempt up.
class ForgottenAttempt : public Error {
 public:
  explicit ForgottenAttempt(int own);
};

/// One attempt of several ranks to become a communicator, with its own keys in the store. It
/// succeeds for all ranks or fails for all, because the first rank that writes the result decides.
/// It fails if a rank dies meanwhile, or if the parent communicator ends. Only one thread makes the
/// calls, but any thread may call store().
class Attempt {
 public:
  static std::shared_ptr<Attempt> begin(const Options& options, const Membership& membership);
  Attempt(const Attempt&) = delete;

  /// Returns the store through which the ranks exchange data while they connect. Its waits end when
  /// the attempt has failed.
  const std::shared_ptr<Store>& store() const { return watched_; }
  /// Publishes where this rank runs. Returns where each rank runs, once all ranks have published
  /// it. Throws Error(timeout | version | mismatch | peer_lost | unavailable), which names the rank
  /// that is missing, different or dead. May also throw ForgottenAttempt, as all_connected() and
  /// fail() may.
  std::vector<Place> meet();
  /// Publishes that this rank is connected. Returns when all ranks are connected.
  void all_connected();
  /// Ends the attempt for all ranks. Throws the cause: the first death, the failure that another
  /// rank published first, or `error`.
  [[noreturn]] void fail(const Error& error);

  static std::string place_key(int rank);
  /// When an attempt at a first communicator fails, it stores the number of known deaths under this
  /// key.
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
  /// Returns the seconds that this rank has waited, for a message. They are rounded to 0.01 s,
  /// because 0.299 s may be the end of a timeout of 0.3 s.
  double seconds_waited() const;

  const Options options_;
  const Membership membership_;
  const std::shared_ptr<Store> store_;  // contains only this attempt's keys
  const ToldFailure failure_;
  std::shared_ptr<Store> watched_;
  // The fields below are used by one thread at a time, in look().
  DeathLog deaths_;
  std::vector<LaunchedRank> members_;  // empty until the members are known
  double report_after_;                // seconds of waiting
  const char* awaited_ = "place";      // name of the key that a missing rank has not written yet
};

}  // namespace tutti
