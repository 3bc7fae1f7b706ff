#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tutti/collectives/collective.h"
#include "tutti/collectives/schedule.h"

namespace tutti {

// These functions say which rank works on whose memory. Every rank loads what it needs from its
// peers' inputs into its own output. In an allreduce each rank reduces one share of all inputs into
// all outputs.

/// Returns whether rank `own` loads from `peer`'s input.
bool reads_from(const Collective& collective, int own, int peer);
/// Returns whether `peer` loads from the input of `own` or stores into its output.
bool is_read_by(const Collective& collective, int own, int peer);
/// Returns whether `own` needs `peer`'s ready message: for its data, or for its verdict alone.
bool listens_to(const Collective& collective, int own, int peer);
/// Returns whether `peer` needs the ready message of `own`.
bool speaks_to(const Collective& collective, int own, int peer);

/// Returns the number of elements of the rank's input.
int64_t input_count(const Collective& collective, int own);
/// Returns the number of elements of its output.
int64_t output_count(const Collective& collective, int own);
/// Returns the offset in `own`'s input at which the part that `peer` reads begins, if only `own`
/// knows it; else 0.
int64_t input_offset(const Collective& collective, int own, int peer);

/// Returns the share of an allreduce that a rank reduces. There are few large shares rather than
/// many small ones, and each begins at a multiple of 64 elements.
Range share_of(const Collective& collective, int own, int size);

/// A copy that rank `own` makes from `peer`'s input, counted from input_offset() on. `peer` may be
/// `own`.
struct PeerCopy {
  int peer = 0;
  int64_t from = 0;   // first element in the peer's input
  int64_t to = 0;     // first element in the output
  int64_t count = 0;  // elements
};
/// Returns the copies of a kind that does not reduce, without empty ones.
std::vector<PeerCopy> copies_of(const Collective& collective, int own, int size);

}  // namespace tutti
