#pragma once

#include <string>
#include <utility>

#include "tutti/backends/store.h"
#include "tutti/base/error.h"

namespace tutti {

/// An Error that one rank reported to all others. Any of them may throw it.
class ToldError : public Error {
 public:
  ToldError(const Error& error, int teller, std::string key, bool accuses = false)
      : Error(error), teller_(teller), accuses_(accuses), key_(std::move(key)) {}
  /// Returns the rank that reported it.
  int teller() const noexcept { return teller_; }
  /// Returns whether the teller itself cannot take part.
  bool gave_itself_up() const noexcept { return teller_ == rank() && !accuses_; }
  /// Returns the store key under which it was reported.
  const std::string& key() const noexcept { return key_; }

 private:
  int teller_;
  bool accuses_;  // the cause was the rank that received it; there, rank() is the teller instead
  std::string key_;
};

/// Ranks that connect report to each other why connecting fails, under one key of their store. The
/// first report decides for all ranks: a rank that ends because of it blames no other rank. Does
/// not own the store.
class ToldFailure {
 public:
  /// `what` names the connection in the key ("tcp"); `rank` is this rank, of `size` ranks.
  ToldFailure(Store& store, const std::string& what, int rank, int size)
      : store_(store), key_(what + "/failure"), rank_(rank), size_(size) {}

  /// Reports the error to the other ranks, unless a report exists, and throws the error that
  /// counts. That is this rank's own error if it names no other rank (Error::rank), else the first
  /// report. A ToldError of this key is thrown on as it is. Returns only if succeed() came first.
  void fail(const Error& error) const;
  /// Does the same for an error that none of these ranks caused, and which therefore has no rank.
  void fail_from_outside(const Error& error) const;
  /// Throws the ToldError if there is a report. Returns true if succeed() came first.
  bool look() const;
  /// Must be called once all ranks are known to be connected. From then on no rank can report a
  /// failure. Throws the ToldError if a report came first.
  void succeed() const;
  /// Waits, through this view of the store, until a rank has decided. Throws like look(), or
  /// Error(timeout).
  void await_success(Store& view, Deadline deadline) const;

 private:
  void tell(const Error& error, const std::string& own, bool is_own) const;
  bool take(const std::string& told) const;
  Store& store_;
  const std::string key_;
  const int rank_, size_;
};

}  // namespace tutti
