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

/// Signature::place has the arena's number above this many bits, and the offset in bytes below.
inline constexpr int kArenaShift = 44;

/// The root of a receive that accepts a send of any rank.
inline constexpr int32_t kFromAnyRank = -1;

/// The properties that all ranks must agree on for one name. For gathered kinds, the first extent
/// may differ.
struct Signature {
  CollectiveKind kind = CollectiveKind::allreduce;
  DataType dtype = DataType::f32;
  DataType wire = DataType::f32;  // the type in which it is sent
  ReduceOp op = ReduceOp::sum;
  DeviceKind placement = DeviceKind::cpu;
  int32_t root = 0;  // for send and recv the peer, or kFromAnyRank
  int32_t priority = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t place = -1;   // number of the ranks' GradientArena, and offset in it; -1: not in an arena
  int64_t begin = 0;    // elements before this one are already reduced (after a veto)
  uint64_t layout = 0;  // digest of its strides, or of the arrays in the arena; 0: row-major memory
  bool updates = false;  // every rank updates an optimizer's arrays from the result or its share
  std::string group;     // empty: not in a group
  int32_t group_size = 0;
  Shape shape;

  bool operator==(const Signature&) const = default;
  /// "f32[6,1,5,5]"
  std::string describe() const;
};

/// A rank's message to the coordinator that it has submitted this operation.
struct Request {
  std::string name;
  Signature signature;
  std::vector<int64_t> rows;  // if parts are exchanged: to each rank; if dealt: of each rank
  int64_t output_rows = -1;   // rows of the caller's output; -1: the caller gave none
  bool after_wait = false;    // its thread waited for another operation before this request
  bool join = false;          // the rank is out of data; all other fields are ignored
};

/// The coordinator's answer: all ranks run the operation, or get its error. All ranks receive the
/// same answers in the same order.
struct Response {
  std::string name;
  Signature signature;
  // Parts are joined: rows of each rank. Parts are dealt: rows to each rank. Parts are exchanged:
  // on the coordinator [from * size + to], otherwise see for_rank(). A pair: {sender, receiver};
  // the signature's root is kFromAnyRank if the receive was from any rank.
  std::vector<int64_t> rows;
  std::vector<int64_t> joined;  // ranks that take part without data
  int64_t id = -1;              // the name's number from now on; -1: not remembered
  std::optional<Error> error;   // the same on every rank
  bool all_joined = false;      // the answer to join; rows = {last rank to join}
  bool after_wait = false;      // all ranks' requests had it; used for rank 0's plans, not sent
  int64_t pair = -1;            // send, recv: number of the ranks' pair from the next use on
};

/// Returns the part of rank `rank` of `rows` rows that are divided equally. The lowest ranks get
/// the remainder.
inline int64_t even_share(int64_t rows, int rank, int size) {
  return rows / size + (rank < rows % size ? 1 : 0);
}

/// Returns the response as `rank` receives it. If parts are exchanged, it has the rows from each
/// rank to `rank`, and then the largest number of rows from any rank to any other.
Response for_rank(const Response& response, int rank, int size);

void encode(WireWriter& writer, const Signature& signature);
Signature decode_signature(WireReader& reader);
void encode(WireWriter& writer, const Error& error);
Error decode_error(WireReader& reader);

}  // namespace tutti
