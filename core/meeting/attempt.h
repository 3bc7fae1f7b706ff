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

/// So long a rank that has its communicator waits for the store, at most, to tidy up there.
inline constexpr double kLeaveSeconds = 5;

/// What a new communicator is made of, beside its options.
struct Membership {
  std::shared_ptr<Store> root;     // of the job
  std::shared_ptr<void> listener;  // to the server of that store, where rank 0 serves it
  std::string path;                // of this attempt's keys in the root store
  PlaceRecord own;                 // what this rank leaves there
  Deadline deadline = Deadline::never();
  Clock::time_point begin = Clock::now();  // since when this rank waits for the others
  // Of members of another communicator: as whom each was launched, in rank order, their numbers
  // among the ranks of their hosts in the job, and what that one's backend leaves to this one's.
  std::vector<LaunchedRank> members;
  std::vector<int> local_ranks;
  std::shared_ptr<Inheritance> inheritance;
  // Also for members of another communicator: the error that ended that communicator, once one did.
  // Its rank is counted among these members; -1: it is none of them. It ends every wait here.
  std::function<std::optional<Error>()> parents_end;
  // Of a first communicator (see core/meeting/rounds.h): its round, and the deaths that are of no
  // member although no rank knows the members before they come.
  int64_t round = -1;
  size_t first_death = 0;
};

/// The store has no keys of the attempt any more: the others went on or gave it up while this rank
/// was stopped or cut off.
class ForgottenAttempt : public Error {
 public:
  explicit ForgottenAttempt(int own);
};

/// One attempt of some ranks to become a communicator, under keys of its own in the store. It
/// succeeds for all of them or fails for all of them, by the word of whichever rank speaks first:
/// no two ranks come to different ends. A rank that dies meanwhile makes it fail, and so does the
/// end of the communicator that these ranks are members of. One thread makes the calls; any thread
/// may call store().
class Attempt {
 public:
  static std::shared_ptr<Attempt> begin(const Options& options, const Membership& membership);
  Attempt(const Attempt&) = delete;

  /// For what the ranks tell each other while they connect: waits end once the attempt has failed.
  const std::shared_ptr<Store>& store() const { return watched_; }
  /// Tells the others where this rank runs; where all run, once all are there. Throws
  /// Error(timeout | version | mismatch | peer_lost | unavailable) that names who is missing, dead
  /// or different; as the following two do, ForgottenAttempt.
  std::vector<Place> meet();
  /// This rank has its connections. Returns once all ranks have theirs.
  void all_connected();
  /// Ends the attempt for all ranks. Throws the cause: the death that came first, what another rank
  /// told first, or this error.
  [[noreturn]] void fail(const Error& error);

  static std::string place_key(int rank);
  /// In a failed attempt of a first communicator: how many deaths were known then.
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
  /// Since this rank began to wait, for people: the deadline began a moment before or after, so
  /// 0.299 is 0.3.
  double seconds_waited() const;

  const Options options_;
  const Membership membership_;
  const std::shared_ptr<Store> store_;  // of this attempt alone
  const ToldFailure failure_;
  std::shared_ptr<Store> watched_;
  // What follows is used by one thread at a time, in look().
  DeathLog deaths_;
  std::vector<LaunchedRank> members_;  // empty until they are known
  double report_after_;                // seconds
  const char* awaited_ = "place";      // by whichever rank is missing
};

}  // namespace tutti
