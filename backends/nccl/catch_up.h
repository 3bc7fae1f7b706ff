#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "tutti/backends/order/message_links.h"
#include "tutti/collectives/transport.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// The shape of a bucket. All ranks must call NCCL with the same shape.
struct BucketShape {
  uint64_t tag = 0;
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int64_t count = 0;  // number of elements, without the bytes for verdicts behind them
};

/// Asks the other ranks to take part in a bucket that they may not have started, and to veto it.
/// This is needed because a rank cannot take back a bucket that is already on its stream, and NCCL
/// waits until all ranks call it. Only the thread that drives the engine uses this class.
class CatchUp {
 public:
  struct Request {
    BucketShape shape;
    uint32_t queue = 0;
  };

  explicit CatchUp(Transport& transport);

  void ask(const Request& request);
  bool progress();
  /// Returns the oldest request of another rank, if there is one.
  std::optional<Request> take();
  /// Returns true if a rank is gone, so that running operations may never end.
  bool has_lost_peer() const { return links_.has_lost_peer(); }

 private:
  const int size_;
  MessageLinks<Request> links_;  // links with all other ranks
  std::deque<Request> requests_;
};

}  // namespace tutti
