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

/// Returns the key under which a rank keeps an operation of two ranks. `peer` may be kFromAnyRank.
std::string pair_entry_key(std::string_view name, int64_t peer);

/// One rank's end of a pair that sends and receives without asking rank 0; see PairLearner. Pure.
///
///   (asking) --an answer makes the pair--> ready <--launch, finish--> running
///   ready   --this rank leaves, or the peer left from the next use on--> left
///   running --its use is finished, and the next one is left------------> left
///   running --the peer left from its use on: it is taken back----------> (asking)
///   left    --the next operation under its key-------------------------> (asking)
///
/// A rank leaves a pair from a certain use on. The uses before that run to their ends.
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
  /// Returns the use that this rank launches next. A running use is the one before.
  uint64_t next_use() const { return next_use_; }
  /// Returns how many uses are finished here.
  uint64_t finished() const { return next_use_ - (state_ == State::running ? 1 : 0); }
  /// Returns whether one of the two ranks asks rank 0 for this use.
  bool is_left_from(uint64_t use) const { return over_from_ <= use; }
  bool is_left_by_peer() const { return left_by_peer_.has_value(); }
  /// Returns whether the peer, which sent this farewell, has finished the use. The farewell lists
  /// the pair as long as a use of it runs there. Before a rank forgets a pair, it sends its number
  /// of finished uses.
  bool peer_finished(uint64_t use, const Farewell& farewell) const {
    return use < farewell.uses_of(id_).value_or(left_by_peer_.value_or(0));
  }

  /// ready -> running. Returns the number of the use.
  uint64_t launch();
  /// running -> ready or left.
  void finish();
  /// Leaves the pair from the next use on. Returns false if one of the two ranks has done so
  /// already.
  bool leave();
  /// The peer leaves the pair from this use on. Returns true if the use that runs here must be
  /// cancelled.
  bool on_left(uint64_t use);
  /// Called before this rank asks its peer for the running use back. Returns false if it has done
  /// so already.
  bool recall();

  std::unique_ptr<Run> idle;  // Run of the last use, kept for the next one

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
  bool is_recalled_ = false;  // the peer was asked for the running use
  uint64_t next_use_ = 0;
  // The first use for which either rank asks rank 0 instead.
  uint64_t over_from_ = std::numeric_limits<uint64_t>::max();
  // The peer has left the pair from this use on. The use before it may still run there.
  std::optional<uint64_t> left_by_peer_;
};

/// The pairs of one rank. Pure: it returns what to send and what to cancel.
class PreparedPairs {
 public:
  /// Called for each answer to an operation of two ranks. `pair` is the id in the answer; -1: none.
  void hear_of(int64_t pair) { newest_ = std::max(newest_, pair); }
  /// Makes the pair that an answer announces. This rank asked for `signature` under `key`. Throws
  /// DamagedMessage if there is a pair under this key already.
  PreparedPair& make(std::string key, int64_t id, const Signature& signature);
  /// Returns null if there is no pair, so rank 0 must be asked.
  PreparedPair* find(const std::string& key);
  void erase(const PreparedPair& pair) { pairs_.erase(std::string(pair.key())); }
  bool empty() const { return pairs_.empty(); }
  void clear();

  /// The peer leaves its pair. Returns the pair if its running use must be cancelled, else null.
  /// Throws DamagedMessage.
  PreparedPair* on_left(int from, int64_t id, uint64_t use);
  /// The peer has launched a use and asks for it back. Returns true if this rank has not launched
  /// the use. This rank then leaves the pair and must announce that to the peer. Throws
  /// DamagedMessage.
  bool on_recall(int from, int64_t id, uint64_t use);

  /// Returns all pairs, in order of their ids.
  std::vector<PreparedPair*> in_order();
  std::vector<const PreparedPair*> in_order() const;
  /// Returns the pairs in which this rank receives under this name, in order of their ids.
  std::vector<PreparedPair*> that_bring(std::string_view name);

 private:
  PreparedPair* with_id(int64_t id);
  void leave_early(int64_t id, uint64_t use);

  std::unordered_map<std::string, PreparedPair> pairs_;  // by key
  int64_t newest_ = -1;                                  // highest id in an answer so far
  // Pairs whose answer is still on its way, with the use from which on the peer has left them.
  std::unordered_map<int64_t, uint64_t> early_left_;
};

}  // namespace tutti
