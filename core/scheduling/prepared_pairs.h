#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/core/agreement/farewell.h"
#include "tutti/core/agreement/pair_learner.h"
#include "tutti/core/scheduling/run.h"

namespace tutti {

/// Returns the key under which a rank keeps a send or receive. `peer` may be kFromAnyRank.
std::string pair_entry_key(std::string_view name, int64_t peer);

/// One rank's end of a prepared pair, which sends and receives without asking rank 0; see
/// PairLearner. Pure.
///
///   (asking) --an answer makes the pair--> ready <--launch, finish--> running
///   ready   --this rank leaves, or the peer left from the next use on--> left
///   running --its use is finished, and the next one is left------------> left
///   running --the peer left from this use on: the use is cancelled-----> (asking)
///   left    --the next operation under its key-------------------------> (asking)
///
/// A rank leaves a pair from a certain use on. Both ranks still complete the uses before that.
class PreparedPair {
 public:
  enum class State : uint8_t { ready, running, left };
  PreparedPair(std::string key, int64_t id, const Signature& signature);

  const std::string& key() const { return key_; }
  int64_t id() const { return id_; }
  int peer() const { return peer_; }
  bool sends() const { return sends_; }
  State state() const { return state_; }
  bool fits(const Signature& signature) const;
  /// Returns the index of the use that this rank launches next. A use that runs now has the index
  /// before it.
  uint64_t next_use() const { return next_use_; }
  /// Returns the number of uses that this rank has finished.
  uint64_t finished() const { return next_use_ - (state_ == State::running ? 1 : 0); }
  /// Returns whether one of the ranks asks rank 0 for this use instead of using the pair.
  bool is_left_from(uint64_t use) const { return over_from_ <= use; }
  bool is_left_by_peer() const { return left_by_peer_.has_value(); }
  /// Returns whether the peer has finished the use. `farewell` came from the peer. It lists the
  /// pair if a use of the pair still runs on the peer. Before a rank forgets a pair, it sends the
  /// number of uses that it has finished.
  bool peer_finished(uint64_t use, const Farewell& farewell) const {
    return use < farewell.uses_of(id_).value_or(left_by_peer_.value_or(0));
  }

  /// Changes from ready to running. Returns the index of the use.
  uint64_t launch();
  /// Changes from running to ready or left.
  void finish();
  /// Leaves the pair from the next use on. Returns false if one of the two ranks has already left
  /// it.
  bool leave();
  /// Records that the peer leaves the pair from `use` on. Returns true if the use that runs on this
  /// rank must be cancelled.
  bool on_left(uint64_t use);
  /// Called before this rank asks its peer to give up the running use. Returns false if this rank
  /// has already asked.
  bool recall();

  std::unique_ptr<Run> idle;  // the Run of the last use, kept for the next use

 private:
  void settle() {
    if (state_ == State::ready && over_from_ <= next_use_) state_ = State::left;
  }

  const std::string key_;
  const int64_t id_;
  const int peer_;
  const bool sends_;
  const DataType dtype_;
  const int64_t count_;
  State state_ = State::ready;
  bool is_recalled_ = false;  // this rank has asked the peer to give up the running use
  uint64_t next_use_ = 0;
  // The first use that one of the two ranks requests from rank 0 instead.
  uint64_t over_from_ = std::numeric_limits<uint64_t>::max();
  // The first use for which the peer has left the pair. The use before it may still run on the
  // peer.
  std::optional<uint64_t> left_by_peer_;
};

/// All pairs of one rank. Pure: it returns what to send and what to cancel.
class PreparedPairs {
 public:
  /// Called for each answer to a send or receive. `pair` is the pair's id in the answer; -1: none.
  void hear_of(int64_t pair) { newest_ = std::max(newest_, pair); }
  /// Makes the pair that an answer announces. This rank had requested `signature` under `key`.
  /// Throws DamagedMessage if there already is a pair with this key.
  PreparedPair& make(std::string key, int64_t id, const Signature& signature);
  /// Returns the pair with this key, or null. Without a pair this rank must ask rank 0.
  PreparedPair* find(const std::string& key);
  void erase(const PreparedPair& pair) { pairs_.erase(std::string(pair.key())); }
  bool empty() const { return pairs_.empty(); }
  void clear();

  /// Records that the peer leaves a pair. Returns the pair if its running use must be cancelled,
  /// else null. Throws DamagedMessage.
  PreparedPair* on_left(int from, int64_t id, uint64_t use);
  /// Handles the peer's request to give up a use that the peer has launched. Returns true if this
  /// rank has not launched the use. This rank then leaves the pair and must announce that to the
  /// peer. Throws DamagedMessage.
  bool on_recall(int from, int64_t id, uint64_t use);

  /// Returns all pairs, ordered by id.
  std::vector<PreparedPair*> in_order();
  std::vector<const PreparedPair*> in_order() const;
  /// Returns the pairs in which this rank receives under this name, ordered by id.
  std::vector<PreparedPair*> that_bring(std::string_view name);

 private:
  PreparedPair* with_id(int64_t id);
  void leave_early(int64_t id, uint64_t use);

  std::unordered_map<std::string, PreparedPair> pairs_;  // by key
  int64_t newest_ = -1;                                  // highest id in an answer so far
  // The pairs whose answer has not arrived yet, but which the peer has already left. Maps the
  // pair's id to the first use for which the peer has left it.
  std::unordered_map<int64_t, uint64_t> early_left_;
};

}  // namespace tutti
