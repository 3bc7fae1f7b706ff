#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/agreement/wire.h"

namespace tutti {

/// The message by which a closing rank reports how far it went. An operation that the rank has
/// finished will complete on every rank, because the rank has sent its peers everything they need
/// for it. Any other operation that needs this rank cannot complete, so its Work can fail on the
/// peers at once. Pure.
struct Farewell {
  /// Negotiated operations, by tag: the first one that the rank has not launched, and the earlier
  /// ones that it has not finished.
  uint64_t next_tag = 0;
  std::vector<int64_t> unfinished;
  /// Replayed buckets, by sequence: the last plan that the rank followed (0: none), the first of
  /// its buckets that the rank has not launched, and the earlier ones that it has not finished.
  uint32_t plan = 0;
  uint64_t next_sequence = 0;
  std::vector<int64_t> unfinished_buckets;
  /// For each of the rank's pairs of send and recv: the pair's number, and its finished uses.
  std::vector<int64_t> pairs;
  /// The number of blocking calls that the rank finished.
  uint64_t blocking_done = 0;
  /// The number of joins that the rank requested. They need nothing more from it, finished or not.
  uint64_t joins = 0;
  /// The rank whose end makes this one close, if known. -1: it closes by its own decision.
  int cause = -1;
  /// The error that made the rank `cause` close. With cause -1 it is the error that made this rank
  /// close. It is the program's text: one line of at most kLongestError bytes. Empty: no error is
  /// known.
  std::string error;
  static constexpr size_t kLongestError = 400;

  bool has_finished(uint64_t tag) const;
  bool has_finished_bucket(uint32_t of_plan, uint64_t sequence) const;
  /// Returns the finished uses of the pair, or nothing if the sender is not in it now.
  std::optional<uint64_t> uses_of(int64_t pair) const;
  bool has_finished_blocking(uint64_t call) const { return call <= blocking_done; }
  /// Returns the rank whose end came first, when rank `own` of `size` receives this from rank
  /// `from`. A rank that closes because another one closed earlier is not the cause.
  int first_to_leave(int from, int own, int size) const {
    return cause >= 0 && cause < size && cause != own ? cause : from;
  }
};

void encode(WireWriter& writer, const Farewell& farewell);
/// Throws DamagedMessage.
Farewell decode_farewell(WireReader& reader);

}  // namespace tutti
