#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/core/scheduling/peers.h"

namespace tutti {

/// Counts the blocking calls of this rank, and says whether the one under way can still end. One is
/// under way at a time. Pure.
class BlockingCalls {
 public:
  /// A call that all ranks make. Returns its number: the first one is 1.
  uint64_t begin_all() {
    is_of_two_ = false;
    return ++begun_;
  }
  /// `calls` sends and receives at once, with these ranks.
  void begin_pairs(size_t calls) {
    is_of_two_ = true;
    peers_.clear();
    pairs_ += calls;
  }
  void add_peer(int rank) { peers_.push_back(rank); }
  /// The call does not end soon, so that it is watched from now on.
  void waits(std::string_view name, Clock::time_point since) {
    name_ = name;
    since_ = since;
  }
  /// The call is over. `error`: null if it ended well.
  void end(const Error* error) {
    name_ = {};
    // That calls disagree is known to all ranks; any other failure is this rank's alone, and its
    // peers wait for its part of this call.
    if (error != nullptr && error->code() != ErrorCode::mismatch && failed_ == 0 && !is_of_two_)
      failed_ = begun_;
  }

  bool is_waiting() const { return !name_.empty(); }
  /// Empty: none waits.
  std::string_view name() const { return name_; }
  Clock::time_point since() const { return since_; }
  bool is_of_two() const { return is_of_two_; }
  /// Whether a send or receive with this rank waits.
  bool needs(int rank) const;
  /// Calls of all ranks that were begun.
  uint64_t begun() const { return begun_; }
  /// Calls of all ranks that are over, well or not.
  uint64_t over() const { return begun_ - (is_waiting() && !is_of_two_ ? 1 : 0); }
  /// Calls of all ranks that this rank finished before it gave the first one up.
  uint64_t finished() const { return failed_ > 0 ? failed_ - 1 : over(); }
  /// Sends and receives.
  uint64_t pairs() const { return pairs_; }
  /// The departure because of which the call of all ranks under way never ends; null: it may end.
  const Departure* departure_that_ends(const Peers& peers) const;

 private:
  uint64_t begun_ = 0;
  uint64_t failed_ = 0;  // the first that this rank gave up; 0: none
  uint64_t pairs_ = 0;
  bool is_of_two_ = false;
  std::vector<int> peers_;  // of sends and receives
  std::string_view name_;
  Clock::time_point since_;
};

}  // namespace tutti
