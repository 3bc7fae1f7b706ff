#pragma once

#include <string>
#include <utility>

#include "tutti/backends/store.h"
#include "tutti/base/error.h"

namespace tutti {

/// An Error that one rank has reported to all other ranks. Any rank may throw it.
class ToldError : public Error {
 public:
  ToldError(const Error& error, int teller, std::string key, bool accuses = false)
      : Error(error), teller_(teller), accuses_(accuses), key_(std::move(key)) {}
  /// Returns the rank that reported the error.
  int teller() const noexcept { return teller_; }
  /// Returns whether the rank that reported the error is also its cause.
  bool gave_itself_up() const noexcept { return teller_ == rank() && !accuses_; }
  /// Returns the store key under which the error was reported.
  const std::string& key() const noexcept { return key_; }

 private:
  int teller_;
  bool accuses_;  // the report names this rank as the cause; then rank() is the teller
  std::string key_;
};

/// Ranks that connect use this class to report to each other why connecting fails. The report is
/// under one key of their store. The first report counts for all ranks. So no rank blames another
/// rank that ended because of this report. The store is borrowed.
class ToldFailure {
 public:
  /// `what` names the kind of connection in the key ("tcp"). `rank` is this rank, and `size` the
  /// number of ranks.
  ToldFailure(Store& store, const std::string& what, int rank, int size)
      : store_(store), key_(what + "/failure"), rank_(rank), size_(size) {}

  /// Reports the error to the other ranks, unless there is a report already. Then throws an error:
  /// this rank's own error if it names no other rank (Error::rank), otherwise the first report. A
  /// ToldError of this key is thrown again as it is. Returns only if succeed() was called first.
  void fail(const Error& error) const;
  /// Does the same as fail() for an error that none of these ranks caused. So the report names no
  /// rank.
  void fail_from_outside(const Error& error) const;
  /// Throws the ToldError if there is a report. Returns true if succeed() was called first.
  bool look() const;
  /// Called when all ranks are known to be connected. From then on no rank can report a failure.
  /// Throws the ToldError if there is a report already.
  void succeed() const;
  /// Waits, through this view of the store, until some rank has called succeed() or reported a
  /// failure. Throws the ToldError of a report, or Error(timeout).
  void await_success(Store& view, Deadline deadline) const;

 private:
  void tell(const Error& error, const std::string& own, bool is_own) const;
  bool take(const std::string& told) const;
  Store& store_;
  const std::string key_;
  const int rank_, size_;
};

}  // namespace tutti
