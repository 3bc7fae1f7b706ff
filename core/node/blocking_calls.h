#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/core/scheduling/peers.h"

namespace tutti {

/// Counts the blocking calls of this rank and decides whether the running call can still complete.
/// At most one call runs at a time. Pure.
class BlockingCalls {
 public:
  /// Begins a collective call, which all ranks make. Returns its sequence number; the first call
  /// gets 1.
  uint64_t begin_all() {
    is_of_two_ = false;
    return ++begun_;
  }
  /// Begins a call with `calls` sends and receives. The caller then adds their peers with
  /// add_peer().
  void begin_pairs(size_t calls) {
    is_of_two_ = true;
    peers_.clear();
    pairs_ += calls;
  }
  void add_peer(int rank) { peers_.push_back(rank); }
  /// Called when the call does not complete quickly. From then on the rank watches its peers.
  void waits(std::string_view name, Clock::time_point since) {
    name_ = name;
    since_ = since;
  }
  /// Called when the call has ended. `error` is null if it completed.
  void end(const Error* error) {
    name_ = {};
    // If the ranks' calls disagree, all ranks know it. Any other failure is known to this rank
    // only, and its peers still wait for its part of the call.
    if (error != nullptr && error->code() != ErrorCode::mismatch && failed_ == 0 && !is_of_two_)
      failed_ = begun_;
  }

  bool is_waiting() const { return !name_.empty(); }
  /// Returns the name of the call that waits, or an empty name if none waits.
  std::string_view name() const { return name_; }
  Clock::time_point since() const { return since_; }
  /// Returns whether a waiting send or receive has this rank as its peer.
  bool needs(int rank) const;
  /// Returns the number of collective calls that this rank has begun.
  uint64_t begun() const { return begun_; }
  /// Returns the number of collective calls that completed or failed on this rank.
  uint64_t over() const { return begun_ - (is_waiting() && !is_of_two_ ? 1 : 0); }
  /// Returns the number of collective calls that this rank finished before it first gave one up.
  uint64_t finished() const { return failed_ > 0 ? failed_ - 1 : over(); }
  /// Returns the number of sends and receives that this rank has begun.
  uint64_t pairs() const { return pairs_; }
  /// If the running collective call can never complete because a rank departed, returns that
  /// departure. Otherwise returns null.
  const Departure* departure_that_ends(const Peers& peers) const;

 private:
  uint64_t begun_ = 0;
  uint64_t failed_ = 0;  // sequence number of the first call that this rank gave up; 0: none
  uint64_t pairs_ = 0;
  bool is_of_two_ = false;
  std::vector<int> peers_;  // peers of the current sends and receives
  std::string_view name_;
  Clock::time_point since_;
};

}  // namespace tutti
