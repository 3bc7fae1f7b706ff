#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tutti/collectives/collective.h"
#include "tutti/collectives/schedule.h"

namespace tutti {

// Who works on whose memory. Every rank loads what it needs from its peers' inputs into its own
// output; of an allreduce each rank reduces one share from all inputs into all outputs.

/// Whether rank `own` loads from `peer`'s input.
bool reads_from(const Collective& collective, int own, int peer);
/// Whether `peer` loads from the input of `own`, or stores into its output.
bool is_read_by(const Collective& collective, int own, int peer);
/// Whether `own` must hear that `peer` is ready: also for its verdict.
bool listens_to(const Collective& collective, int own, int peer);
/// Whether `peer` must hear that `own` is.
bool speaks_to(const Collective& collective, int own, int peer);

/// Elements of a rank's input.
int64_t input_count(const Collective& collective, int own);
/// Elements of its output.
int64_t output_count(const Collective& collective, int own);
/// Where in the input of `own` that begins which `peer` loads, as far as only `own` knows it.
int64_t input_offset(const Collective& collective, int own, int peer);

/// The share of an allreduce that a rank reduces: few whole ones rather than many small ones, and
/// beginning at a multiple of 64 elements.
Range share_of(const Collective& collective, int own, int size);

/// What rank `own` copies from `peer`'s input, from where input_offset() says on; `peer` may be
/// `own`.
struct PeerCopy {
  int peer = 0;
  int64_t from = 0;   // element of the peer's input
  int64_t to = 0;     // element of the output
  int64_t count = 0;  // elements
};
/// Of kinds that do not reduce; nothing that is empty.
std::vector<PeerCopy> copies_of(const Collective& collective, int own, int size);

}  // namespace tutti
