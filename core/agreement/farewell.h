#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/agreement/wire.h"

namespace tutti {

/// What a rank that closes its Communicator tells its peers: how far it went. An operation that it
/// has finished ends on every rank, because it has given its peers all that they need of it for
/// that one; any other that needs it never ends, and its Work can fail at once on the peers. Pure.
struct Farewell {
  /// Negotiated operations: the first that it has not launched, and those before that it launched
  /// and did not finish, by tag.
  uint64_t next_tag = 0;
  std::vector<int64_t> unfinished;
  /// Replayed buckets: the last plan that it followed (0: none), the first bucket of it that it has
  /// not launched, and those before that it did not finish, by sequence.
  uint32_t plan = 0;
  uint64_t next_sequence = 0;
  std::vector<int64_t> unfinished_buckets;
  /// Of each pair of send and recv that it is in: its number, and how many uses are finished.
  std::vector<int64_t> pairs;
  /// Blocking calls that it finished.
  uint64_t blocking_done = 0;
  /// Joins that it asked for, finished or not: these need no more of it.
  uint64_t joins = 0;
  /// The rank because of whose end it closes, as far as it knows; -1: of its own accord.
  int cause = -1;
  /// The error because of which that rank closes, or this one if it closes of its own accord, as
  /// the program says it (a line of at most kLongestError bytes); empty: no error is known.
  std::string error;
  static constexpr size_t kLongestError = 400;

  bool has_finished(uint64_t tag) const;
  bool has_finished_bucket(uint32_t of_plan, uint64_t sequence) const;
  /// How many uses of the pair are finished; none: the pair has ended there, or has not begun.
  std::optional<uint64_t> uses_of(int64_t pair) const;
  bool has_finished_blocking(uint64_t call) const { return call <= blocking_done; }
  /// The rank whose end began it, as rank `own` of `size` hears it of rank `from`: a rank that
  /// closes because another one closed before is not the cause.
  int first_to_leave(int from, int own, int size) const {
    return cause >= 0 && cause < size && cause != own ? cause : from;
  }
};

void encode(WireWriter& writer, const Farewell& farewell);
/// Throws DamagedMessage.
Farewell decode_farewell(WireReader& reader);

}  // namespace tutti
