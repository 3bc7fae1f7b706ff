#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tutti/collectives/collective.h"
#include "tutti/collectives/schedule.h"

namespace tutti {

// These functions define which rank works on which memory. Every rank loads the elements that it
// needs from its peers' inputs into its own output. In an allreduce each rank reduces one share of
// all inputs and stores the result into all outputs.

/// Returns whether rank `own` loads from `peer`'s input.
bool reads_from(const Collective& collective, int own, int peer);
/// Returns whether `peer` loads from the input of `own` or stores into its output.
bool is_read_by(const Collective& collective, int own, int peer);
/// Returns whether `own` needs `peer`'s ready message, for its data or only for its verdict (go or
/// veto).
bool listens_to(const Collective& collective, int own, int peer);
/// Returns whether `peer` needs the ready message of `own`.
bool speaks_to(const Collective& collective, int own, int peer);

/// Returns the number of elements of the input of `own`.
int64_t input_count(const Collective& collective, int own);
/// Returns the number of elements of the output of `own`.
int64_t output_count(const Collective& collective, int own);
/// Returns the offset, in elements, at which the part that `peer` reads begins in the input of
/// `own`. Returns 0 if the peer can compute that offset itself.
int64_t input_offset(const Collective& collective, int own, int peer);

/// Returns the elements that rank `own` reduces in an allreduce of `size` ranks. Each share begins
/// at a multiple of 64 elements. Shares are not made smaller than 64 KiB, so later ranks may have
/// none.
Range share_of(const Collective& collective, int own, int size);

/// A copy that rank `own` makes from `peer`'s input. `peer` may be `own`.
struct PeerCopy {
  int peer = 0;
  int64_t from = 0;   // first element, counted from input_offset()
  int64_t to = 0;     // first element in the output of `own`
  int64_t count = 0;  // number of elements
};
/// Returns the copies that rank `own` makes in a collective that does not reduce. Empty copies are
/// left out.
std::vector<PeerCopy> copies_of(const Collective& collective, int own, int size);

}  // namespace tutti
