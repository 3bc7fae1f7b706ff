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

/// The key under which a rank keeps an operation of two ranks. `peer`: or kFromAnyRank.
std::string pair_entry_key(std::string_view name, int64_t peer);

/// One rank's end of a pair that sends and receives without asking; see PairLearner. Pure.
///
///   (asking) --an answer makes the pair--> ready <--launch, finish--> running
///   ready   --this rank leaves, or the peer left from the next use on--> left
///   running --its use is finished, and the next one is left------------> left
///   running --the peer left from its use on: it is taken back----------> (asking)
///   left    --the next operation under its key-------------------------> (asking)
///
/// A pair is left from a use on: the uses before run to their ends.
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
  /// The use that this rank launches next. While one is running that is the one before.
  uint64_t next_use() const { return next_use_; }
  /// Uses that are finished here.
  uint64_t finished() const { return next_use_ - (state_ == State::running ? 1 : 0); }
  /// Whether one of the two ranks asks rank 0 for this use.
  bool is_left_from(uint64_t use) const { return over_from_ <= use; }
  bool is_left_by_peer() const { return left_by_peer_.has_value(); }
  /// Whether the peer, which said this farewell, has finished the use. A pair is in the farewell as
  /// long as a use of it runs there. Before a rank forgets a pair it says how many uses it
  /// finished.
  bool peer_finished(uint64_t use, const Farewell& farewell) const {
    return use < farewell.uses_of(id_).value_or(left_by_peer_.value_or(0));
  }

  /// ready -> running. Returns the number of the use.
  uint64_t launch();
  /// running -> ready or left.
  void finish();
  /// This rank leaves the pair from the next use on. False: one of the two has left it already.
  bool leave();
  /// The peer leaves it from this use on. True: the use that runs here is to be cancelled.
  bool on_left(uint64_t use);
  /// This rank asks its peer for the running use back. False: it has done so already.
  bool recall();

  std::unique_ptr<Run> idle;  // kept for the next use

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
  bool is_recalled_ = false;  // the running use
  uint64_t next_use_ = 0;
  // The first use that either rank asks for instead.
  uint64_t over_from_ = std::numeric_limits<uint64_t>::max();
  // The peer has left the pair from this use on. The use before may still run there.
  std::optional<uint64_t> left_by_peer_;
};

/// The pairs of one rank. Pure: it says what to tell and to cancel.
class PreparedPairs {
 public:
  /// Rank 0 has answered an operation of two ranks, which this pair came with; -1: none did.
  void hear_of(int64_t pair) { newest_ = std::max(newest_, pair); }
  /// An answer has made this rank, which asked for `signature` under `key`, one of a pair. Throws
  /// DamagedMessage if the two are one already.
  PreparedPair& make(std::string key, int64_t id, const Signature& signature);
  /// Null: there is none, so it must be asked for.
  PreparedPair* find(const std::string& key);
  void erase(const PreparedPair& pair) { pairs_.erase(std::string(pair.key())); }
  bool empty() const { return pairs_.empty(); }
  void clear();

  /// The peer leaves its pair. Returns the pair whose running use is to be cancelled; null: none.
  /// Throws DamagedMessage.
  PreparedPair* on_left(int from, int64_t id, uint64_t use);
  /// The peer asks for a use back that it has launched. True: this rank has not launched it, gives
  /// it up and must say so. Throws DamagedMessage.
  bool on_recall(int from, int64_t id, uint64_t use);

  /// All pairs, by their numbers.
  std::vector<PreparedPair*> in_order();
  std::vector<const PreparedPair*> in_order() const;
  /// The pairs in which this rank receives under this name, by their numbers.
  std::vector<PreparedPair*> that_bring(std::string_view name);

 private:
  PreparedPair* with_id(int64_t id);
  void leave_early(int64_t id, uint64_t use);

  std::unordered_map<std::string, PreparedPair> pairs_;  // by key
  int64_t newest_ = -1;                                  // that any answer has told of
  // Pairs whose answer is still on its way, and from which use on their peer has left them.
  std::unordered_map<int64_t, uint64_t> early_left_;
};

}  // namespace tutti
