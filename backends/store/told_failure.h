#pragma once

#include <string>
#include <utility>

#include "tutti/backends/store.h"
#include "tutti/base/error.h"

namespace tutti {

/// An Error that one rank told all others, on any of them.
class ToldError : public Error {
 public:
  ToldError(const Error& error, int teller, std::string key, bool accuses = false)
      : Error(error), teller_(teller), accuses_(accuses), key_(std::move(key)) {}
  /// The rank that told it.
  int teller() const noexcept { return teller_; }
  /// The teller cannot take part itself.
  bool gave_itself_up() const noexcept { return teller_ == rank() && !accuses_; }
  /// Of the store, where it was told.
  const std::string& key() const noexcept { return key_; }

 private:
  int teller_;
  bool accuses_;  // the rank that hears it, which has the teller as rank() instead
  std::string key_;
};

/// Ranks that connect tell each other why it cannot succeed, under one key of their store. The
/// first rank that says anything decides for all: the ranks that end because of it blame no
/// other rank. Does not own the store.
class ToldFailure {
 public:
  /// `what` these ranks connect, as a part of the key ("tcp"); `rank` is the own one of `size`.
  ToldFailure(Store& store, const std::string& what, int rank, int size)
      : store_(store), key_(what + "/failure"), rank_(rank), size_(size) {}

  /// Tells the others, unless one was first, and throws what counts here: this rank's own error
  /// (one that names no other rank, see Error::rank), else the first told. One that was told
  /// already goes on as it is. Returns only if succeed() was decided before.
  void fail(const Error& error) const;
  /// The same for an error whose cause is none of these ranks, and which so has no rank.
  void fail_from_outside(const Error& error) const;
  /// Throws the ToldError if there is one; true if succeed() was decided.
  bool look() const;
  /// To be called once all ranks are known to be connected: from then on no rank can fail it any
  /// more. Throws the ToldError if one was first.
  void succeed() const;
  /// Waits, by this view of the store, until a rank has decided. Throws like look(), or
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
