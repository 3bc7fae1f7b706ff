#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/agreement/wire.h"

namespace tutti {

/// The message by which a closing rank reports what it has finished. If the rank has finished an
/// operation, it has sent everything that its peers need, so the operation will complete on every
/// rank. Any other operation that needs this rank can never complete, so its Work can fail on the
/// peers immediately. Pure.
struct Farewell {
  /// Progress in the negotiated operations, which have tags. next_tag is the first operation that
  /// the rank has not launched. `unfinished` has the earlier operations that it has not finished.
  uint64_t next_tag = 0;
  std::vector<int64_t> unfinished;
  /// Progress in the plans, whose buckets have sequence numbers. `plan` is the id of the last plan
  /// that the rank followed (0: none). next_sequence is the first bucket of this plan that the rank
  /// has not launched. unfinished_buckets has the earlier buckets that it has not finished.
  uint32_t plan = 0;
  uint64_t next_sequence = 0;
  std::vector<int64_t> unfinished_buckets;
  /// For each prepared pair (a send and a recv that repeat) of the rank: its id and its finished
  /// uses.
  std::vector<int64_t> pairs;
  /// The number of blocking calls that the rank finished.
  uint64_t blocking_done = 0;
  /// The number of joins that the rank requested. They need nothing more from this rank.
  uint64_t joins = 0;
  /// The rank whose end made this rank close, if known. -1: this rank closes by its own decision.
  int cause = -1;
  /// The error because of which the rank `cause` closed. If cause is -1, it is the error because of
  /// which this rank closes. The text comes from the program: one line of at most kLongestError
  /// bytes. Empty: no error is known.
  std::string error;
  static constexpr size_t kLongestError = 400;

  bool has_finished(uint64_t tag) const;
  bool has_finished_bucket(uint32_t of_plan, uint64_t sequence) const;
  /// Returns the number of finished uses of the pair, or nothing if the sender does not list it.
  std::optional<uint64_t> uses_of(int64_t pair) const;
  bool has_finished_blocking(uint64_t call) const { return call <= blocking_done; }
  /// Returns the rank whose end came first. It is `cause` if that is a rank other than `own` (this
  /// rank), else `from`, the rank that sent this farewell.
  int first_to_leave(int from, int own, int size) const {
    return cause >= 0 && cause < size && cause != own ? cause : from;
  }
};

void encode(WireWriter& writer, const Farewell& farewell);
/// Decodes a farewell. Throws DamagedMessage.
Farewell decode_farewell(WireReader& reader);

}  // namespace tutti
