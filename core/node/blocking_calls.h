#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/core/scheduling/peers.h"

namespace tutti {

/// Counts the blocking calls of this rank and decides whether the running one can still complete.
/// Only one runs at a time. Pure.
class BlockingCalls {
 public:
  /// Begins a call that all ranks make. Returns its number, which is 1 for the first one.
  uint64_t begin_all() {
    is_of_two_ = false;
    return ++begun_;
  }
  /// Begins `calls` sends and receives at once. add_peer() names their ranks.
  void begin_pairs(size_t calls) {
    is_of_two_ = true;
    peers_.clear();
    pairs_ += calls;
  }
  void add_peer(int rank) { peers_.push_back(rank); }
  /// Called when the call takes longer, so that it is watched from now on.
  void waits(std::string_view name, Clock::time_point since) {
    name_ = name;
    since_ = since;
  }
  /// Called when the call is over. `error` is null if it completed.
  void end(const Error* error) {
    name_ = {};
    // If calls disagree, all ranks know it. Any other failure is this rank's alone, and its peers
    // wait for its part of this call.
    if (error != nullptr && error->code() != ErrorCode::mismatch && failed_ == 0 && !is_of_two_)
      failed_ = begun_;
  }

  bool is_waiting() const { return !name_.empty(); }
  /// Returns the name of the call that waits, or an empty name.
  std::string_view name() const { return name_; }
  Clock::time_point since() const { return since_; }
  bool is_of_two() const { return is_of_two_; }
  /// Returns whether a send or receive with this rank waits.
  bool needs(int rank) const;
  /// Returns how many calls of all ranks were begun.
  uint64_t begun() const { return begun_; }
  /// Returns how many calls of all ranks completed or failed.
  uint64_t over() const { return begun_ - (is_waiting() && !is_of_two_ ? 1 : 0); }
  /// Returns how many calls of all ranks this rank finished before it first gave one up.
  uint64_t finished() const { return failed_ > 0 ? failed_ - 1 : over(); }
  /// Returns the number of sends and receives.
  uint64_t pairs() const { return pairs_; }
  /// Returns the departure because of which the running call of all ranks can never complete, or
  /// null.
  const Departure* departure_that_ends(const Peers& peers) const;

 private:
  uint64_t begun_ = 0;
  uint64_t failed_ = 0;  // first call that this rank gave up; 0: none
  uint64_t pairs_ = 0;
  bool is_of_two_ = false;
  std::vector<int> peers_;  // of the sends and receives
  std::string_view name_;
  Clock::time_point since_;
};

}  // namespace tutti
