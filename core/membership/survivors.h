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

/// Maps each live rank to the ranks that it has given up.
using Votes = std::map<int, std::set<int>>;

/// Returns the ranks that go on. They are the ranks that voted and are not dead, minus the ranks
/// that must be removed until no remaining rank has given up another. The rank with the most votes
/// against it is removed first. So a rank that was stopped and has given up all others harms none
/// of them. If two ranks have given up each other, the higher one is removed.
std::vector<int> choose_members(Votes votes, const std::set<int>& dead);

/// The ranks of a communicator that broke agree on the survivors, epoch after epoch, until all
/// members of one epoch have connected. Ranks are those of the broken communicator. In the store a
/// rank has the number that it had in the first communicator of the path. This is needed because a
/// rank that was stopped may shrink a communicator that the others have already shrunk, and their
/// numbers then differ from its own.
///
/// In each epoch every remaining candidate votes: it states that it lives and which ranks it has
/// given up. Once every rank that is not dead has voted, or the settling time has passed, the first
/// rank to notice fixes the members for all. Only these members vote in the next epoch. A rank that
/// was left out therefore stays out, and two epochs cannot produce communicators that exclude each
/// other.
class Survivors {
 public:
  struct Terms {
    int own = 0;
    std::vector<LaunchedRank> launched = {};  // one per rank
    std::vector<int> first_ranks = {};        // one per rank, ascending; empty: the same numbers
    std::set<int> given_up = {};              // by this rank, before the first epoch
    double settle = 1;  // seconds to wait for a rank's vote before it is left out
  };
  /// `root`: the job's store. `path`: the communicator's prefix in it.
  Survivors(std::shared_ptr<Store> root, std::string path, int epoch, Terms terms);

  /// Returns the members of the next epoch. Throws Error(timeout) naming who is missing,
  /// Error(peer_silent) if this rank is not a member, Error(unavailable) if the store is gone.
  std::vector<int> agree(Deadline deadline);
  int epoch() const { return epoch_; }
  /// Returns the members' ranks in the first communicator of the path.
  std::vector<int> first_ranks() const;
  /// Returns the prefix of this epoch's keys in the root store.
  std::string epoch_path() const { return epoch_path(epoch_); }
  /// Records that the members of this epoch could not connect; the caller then calls agree() again.
  /// Throws the error if it is this rank's own, or if it names no member.
  void not_connected(const Error& error);
  /// Declares that the members of this epoch are connected, and that this rank reads no key of it
  /// any more. The last member to do so erases the keys of all epochs so far and the keys under
  /// `others`.
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
  const int first_epoch_;  // of the broken communicator
  int epoch_;
  std::vector<int> candidates_;
  std::set<int> given_up_;
  std::map<int, int> complaints_;  // failed attempts that each rank caused, while it may still live
};

}  // namespace tutti
