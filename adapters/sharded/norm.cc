#include <fmt/format.h>

#include <cmath>

#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/base/error.h"
#include "tutti/core/communicator.h"

namespace tutti {

namespace {

template <class T>
double squares_of(const TensorView& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double value = tensor.as<T>()[i];
    sum += value * value;
  }
  return sum;
}

}  // namespace

double global_norm(Communicator& comm, const std::vector<PlacedTensor>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) {
    const auto dtype = tensor.here.dtype();
    const auto device = tensor.here.device();
    if (tensor.placement.held == Held::partial_sum || device.kind != DeviceKind::cpu ||
        (dtype != DataType::f32 && dtype != DataType::f64))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("global_norm takes f32 and f64 in host memory that are divided or "
                              "replicated, \"{}\" is {} on {}{}",
                              tensor.name, to_string(dtype), to_string(device),
                              tensor.placement.held == Held::partial_sum ? ", a partial sum" : ""))
          .with_rank(comm.rank())
          .with_tensor(tensor.name);
    if (tensor.placement.held == Held::replicated && comm.rank() != 0) continue;
    sum +=
        dtype == DataType::f32 ? squares_of<float>(tensor.here) : squares_of<double>(tensor.here);
  }
  return std::sqrt(comm.allreduce_blocking("global norm", sum, ReduceOp::sum));
}

}  // namespace tutti
