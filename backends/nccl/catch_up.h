#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "tutti/backends/order/message_links.h"
#include "tutti/collectives/transport.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// A bucket as all ranks must call it.
struct BucketShape {
  uint64_t tag = 0;
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int64_t count = 0;  // elements, without the lane
};

/// Asks the other ranks to take part, with a veto, in a bucket that they never started: a rank
/// that cancels one which is on its stream already cannot take it back, and NCCL waits until all
/// ranks came. The holder of the engine's token only.
class CatchUp {
 public:
  struct Request {
    BucketShape shape;
    uint32_t queue = 0;
  };

  explicit CatchUp(Transport& transport);

  void ask(const Request& request);
  bool progress();
  /// What other ranks ask of this one, in the order of each.
  std::optional<Request> take();
  /// True if a rank is gone, so that what runs may never end.
  bool has_lost_peer() const { return links_.has_lost_peer(); }

 private:
  const int size_;
  MessageLinks<Request> links_;  // with each other rank
  std::deque<Request> requests_;
};

}  // namespace tutti
