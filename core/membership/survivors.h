#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tutti/backends/store/told_failure.h"
#include "tutti/base/deadline.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// Maps each rank that voted to the ranks that it has given up.
using Votes = std::map<int, std::set<int>>;

/// Returns the ranks that continue. The function begins with all ranks that voted and are not dead.
/// It removes ranks until no remaining rank has given up another remaining rank, and begins with
/// the rank that most others have given up. So a rank that was stopped, and therefore has given up
/// all others, does not cause their removal. If two ranks have given up each other, the higher rank
/// is removed.
std::vector<int> choose_members(Votes votes, const std::set<int>& dead);

/// Lets the ranks of a broken communicator agree on the survivors. This takes one or more epochs,
/// until all members of an epoch have connected. The interface uses the ranks of the broken
/// communicator. In the store, a rank has the number that it had in the first communicator of the
/// path. This is needed because a rank that was stopped may shrink a communicator that the other
/// ranks have already shrunk. Their current ranks then differ from those that this rank knows.
///
/// In each epoch every remaining candidate votes. A vote says that the rank lives, and which ranks
/// it has given up. The vote ends when every rank that is not dead has voted, or the settling time
/// has passed. The first rank to notice this writes down the members for all ranks. Only these
/// members vote in the next epoch. An excluded rank therefore stays excluded, and two epochs cannot
/// produce communicators that exclude each other.
class Survivors {
 public:
  struct Terms {
    int own = 0;
    std::vector<LaunchedRank> launched = {};  // one per rank
    // Each rank's number in the first communicator, ascending; empty: the same as its rank.
    std::vector<int> first_ranks = {};
    std::set<int> given_up = {};  // ranks that this rank has given up before the first epoch
    double settle = 1;            // seconds to wait for a rank's vote before it is excluded
  };
  /// `root` is the job's store. `path` is the communicator's prefix in it.
  Survivors(std::shared_ptr<Store> root, std::string path, int epoch, Terms terms);

  /// Returns the members of the next epoch. Throws Error(timeout) that names the missing ranks,
  /// Error(peer_silent) if this rank is not a member, and Error(unavailable) if the store is gone.
  std::vector<int> agree(Deadline deadline);
  int epoch() const { return epoch_; }
  /// Returns the members' ranks in the first communicator that used the path.
  std::vector<int> first_ranks() const;
  /// Returns the prefix of this epoch's keys in the root store.
  std::string epoch_path() const { return epoch_path(epoch_); }
  /// Records that the members of this epoch could not connect. The caller then calls agree() again.
  /// Throws the error if it concerns this rank itself, or if it names no member.
  void not_connected(const Error& error);
  /// Declares that the members of this epoch are connected, and that this rank will not read the
  /// epoch's keys any more. The last member that calls connected() erases the keys of all epochs so
  /// far and the keys with the prefix `others`.
  void connected(const std::string& others) noexcept;

 private:
  static Terms completed(Terms terms);
  std::string epoch_path(int epoch) const;
  std::string members_key(int epoch) const;
  std::set<int> awaited(const Votes& votes, const std::set<int>& dead) const;
  std::set<int> dead_ranks();
  int first_rank(int rank) const;
  template <typename Ranks>
  std::string encode(const Ranks& ranks) const;
  std::vector<int> decode(const std::string& text) const;

  const std::shared_ptr<Store> root_;
  const std::string path_;
  const Terms terms_;
  DeathLog deaths_;
  const int first_epoch_;  // epoch of the broken communicator
  int epoch_;
  std::vector<int> candidates_;
  std::set<int> given_up_;
  std::map<int, int> complaints_;  // number of failed attempts that each rank caused
};

}  // namespace tutti
