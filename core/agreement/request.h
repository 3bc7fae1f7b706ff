#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/collectives/collective.h"
#include "tutti/core/agreement/wire.h"
#include "tutti/tensor/device.h"
#include "tutti/tensor/shape.h"

namespace tutti {

/// Number of low bits of Signature::place that hold the byte offset. The arena's id is in the bits
/// above.
inline constexpr int kArenaShift = 44;

/// The root of a receive that accepts a send from any rank.
inline constexpr int32_t kFromAnyRank = -1;

/// The properties on which all ranks must agree for one name. For kinds that gather, the first
/// extent may differ.
struct Signature {
  CollectiveKind kind = CollectiveKind::allreduce;
  DataType dtype = DataType::f32;
  DataType wire = DataType::f32;  // the dtype in which it is sent
  ReduceOp op = ReduceOp::sum;
  DeviceKind placement = DeviceKind::cpu;
  int32_t root = 0;  // root of the operation; for send and recv the peer, or kFromAnyRank
  int32_t priority = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t place = -1;  // id of the ranks' GradientArena, and byte offset in it; -1: not in an arena
  int64_t begin = 0;   // earlier elements are already reduced (set when a plan failed)
  uint64_t layout = 0;   // hash of the strides, or of the arrays in the arena; 0: row-major memory
  bool updates = false;  // an optimizer's arrays are updated from the result
  std::string group;     // empty: not in a group
  int32_t group_size = 0;
  Shape shape;

  bool operator==(const Signature&) const = default;
  /// Returns a text such as "f32[6,1,5,5]".
  std::string describe() const;
};

/// A rank's message to the coordinator: it has submitted this operation.
struct Request {
  std::string name;
  Signature signature;
  // Row counts, one per rank. If parts are exchanged (alltoall): the rows that this rank sends to
  // each rank. If parts are dealt (scatter, reduce_scatter): the rows that each rank receives.
  std::vector<int64_t> rows;
  int64_t output_rows = -1;  // rows of the caller's output; -1: the caller gave none
  bool after_wait = false;   // the submitting thread waited for another operation just before
  bool join = false;         // the rank is out of data; all other fields are ignored
};

/// The coordinator's answer: all ranks run the operation, or all get its error. All ranks receive
/// the same answers in the same order.
struct Response {
  std::string name;
  Signature signature;
  // Row counts. If the ranks' parts are joined (allgather): the rows of each rank. If parts are
  // dealt (scatter): the rows for each rank. If parts are exchanged (alltoall), the coordinator has
  // the rows from every rank to every rank, at [from * size + to]; for the other ranks see
  // for_rank(). For a send and its receive: {sender, receiver}. Then the signature's root is
  // kFromAnyRank if the receive accepted any rank.
  std::vector<int64_t> rows;
  std::vector<int64_t> joined;  // ranks that have joined and take part without data
  int64_t id = -1;              // id of the name from now on; -1: the name got none
  std::optional<Error> error;   // the same on every rank
  bool all_joined = false;      // this answers a join; `rows` has the last rank to join
  bool after_wait = false;  // all ranks' requests had after_wait; used for rank 0's plans, not sent
  int64_t pair = -1;        // send, recv: id of the prepared pair for later uses; -1: none
};

/// Returns the number of rows that rank `rank` gets if `rows` rows are divided equally. The lowest
/// ranks get the remainder.
inline int64_t even_share(int64_t rows, int rank, int size) {
  return rows / size + (rank < rows % size ? 1 : 0);
}

/// Returns the response in the form that `rank` receives. If parts are exchanged, `rows` has the
/// rows from each rank to `rank`, and then the largest number of rows from any rank to any other.
Response for_rank(const Response& response, int rank, int size);

void encode(WireWriter& writer, const Signature& signature);
Signature decode_signature(WireReader& reader);
void encode(WireWriter& writer, const Error& error);
Error decode_error(WireReader& reader);

}  // namespace tutti
