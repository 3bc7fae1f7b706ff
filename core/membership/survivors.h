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

/// Whom each rank that lives has given up: rank -> those ranks.
using Votes = std::map<int, std::set<int>>;

/// Who goes on: the ranks that voted and are not dead, but for those that must be given up until no
/// rank that goes on has given up another. Most votes against decide, so that a rank that was
/// stopped and has given up all others harms none of them; of two that have given up each other the
/// higher number goes.
std::vector<int> choose_members(Votes votes, const std::set<int>& dead);

/// The ranks of a communicator that broke agree on who is left, epoch after epoch, until those of
/// one epoch have all connected. Ranks are those of the broken communicator. In the store a rank
/// has the number that it had in the first communicator of the path: a rank that was stopped may
/// still shrink a communicator that the others have shrunk already, and has other numbers than
/// they.
///
/// In each epoch every rank that still counts votes: that it lives, and whom it has given up. Once
/// all that are not dead have voted, or the settling time has passed, the first rank to notice
/// fixes the members for all. Only they vote in the next epoch, so a rank that was left out stays
/// out, and no two epochs can end in communicators that exclude each other.
class Survivors {
 public:
  struct Terms {
    int own = 0;
    std::vector<LaunchedRank> launched = {};  // of all ranks
    std::vector<int> first_ranks = {};        // of all, rising; empty: ranks are their first ones
    std::set<int> given_up = {};              // by the own rank, before
    double settle = 1;  // seconds until a rank that says nothing is left behind
  };
  /// `root`: the job's store; `path`: of the communicator in it.
  Survivors(std::shared_ptr<Store> root, std::string path, int epoch, Terms terms);

  /// The members of the next epoch. Throws Error(timeout) naming who is missing,
  /// Error(peer_silent) if the own rank is not among them, Error(unavailable) if the store is gone.
  std::vector<int> agree(Deadline deadline);
  int epoch() const { return epoch_; }
  /// Of these members, in the first communicator of the path.
  std::vector<int> first_ranks() const;
  /// Of this epoch's keys in the root store.
  std::string epoch_path() const { return epoch_path(epoch_); }
  /// The members of this epoch could not connect; agree() again. Throws the error if it is the own
  /// rank's.
  void not_connected(const Error& error);
  /// The members of this epoch are connected, and this rank looks at no key of it any more. The
  /// last one of them that says so erases the keys of all epochs so far, and those under `others`.
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
  const int first_epoch_;  // in which the broken communicator was made
  int epoch_;
  std::vector<int> candidates_;
  std::set<int> given_up_;
  std::map<int, int> complaints_;  // about ranks that may still live
};

}  // namespace tutti
