#include "tutti/adapters/torch/sparse_rows.h"

#include <ATen/ATen.h>

#include <utility>

#include "tutti/adapters/torch/tensors.h"

namespace tutti::torch {

void SparseRows::send(const ::at::Tensor& gradient, ReduceOp op) {
  if (gradient.defined()) {
    // The gradient is dense if the parameter is tied to a layer with dense gradients.
    const auto rows =
        (gradient.layout() == ::at::kStrided ? gradient.to_sparse(1) : gradient).coalesce();
    // Rows are sent from host memory.
    indices_ = rows.indices().select(0, 0).contiguous().cpu();
    values_ = rows.values().contiguous().cpu();
  } else {
    auto sizes = parameter_.sizes().vec();
    sizes[0] = 0;
    indices_ = ::at::empty({0}, ::at::kLong);
    values_ = ::at::empty(sizes, parameter_.options().device(::at::kCPU).requires_grad(false));
  }
  work_ = comm_.sparse_allreduce("gradient " + name_,
                                 {.indices = view_of(name_, indices_, comm_.rank()),
                                  .values = view_of(name_, values_, comm_.rank())},
                                 op);
}

::at::Tensor SparseRows::wait() {
  auto work = std::exchange(work_, Work());
  if (!work) return {};
  work.wait();
  const auto indices = tensor_of(work.output(0));
  if (indices.numel() == 0) return {};
  const auto there = parameter_.device();
  return ::at::sparse_coo_tensor(indices.unsqueeze(0).to(there),
                                 tensor_of(work.output(1)).to(there), parameter_.sizes())
      .coalesce();
}

}  // namespace tutti::torch
