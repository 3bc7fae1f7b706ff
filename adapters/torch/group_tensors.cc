#include "tutti/adapters/torch/group_tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "tutti/adapters/torch/tensors.h"

namespace tutti::torch {

namespace {

void check(const GroupCall& call, const ::at::Tensor& tensor) {
  if (!tensor.defined()) throw call.refused("got an undefined tensor");
  if (!tensor.device().is_cpu() || tensor.layout() != ::at::kStrided)
    throw call.refused(fmt::format("got a {} tensor on {}, want a dense one in host memory",
                                   tensor.layout() == ::at::kStrided ? "dense" : "sparse",
                                   tensor.device().str()));
  if (!tensor.is_non_overlapping_and_dense())
    throw call.refused(
        fmt::format("got a tensor of shape [{}] whose strides [{}] leave gaps or overlap; pass its "
                    "contiguous()",
                    fmt::join(tensor.sizes(), ","), fmt::join(tensor.strides(), ",")));
}

TensorView row_of(const ::at::Tensor& dense, DataType dtype) {
  return {dense.data_ptr(), Shape{dense.numel() * unit_of(dense)}, dtype};
}

}  // namespace

Error GroupCall::refused(const std::string& why) const {
  return Error(ErrorCode::invalid_argument, fmt::format("{} on rank {}: {}", name, rank, why))
      .with_rank(rank);
}

InPlace in_place(const GroupCall& call, const ::at::Tensor& tensor) {
  check(call, tensor);
  const auto own = tensor.detach();
  if (own.is_contiguous()) return {own, {}};
  const auto copy = own.contiguous();
  return {copy, [own, copy] { own.copy_(copy); }};
}

::at::Tensor as_input(const GroupCall& call, const ::at::Tensor& tensor) {
  check(call, tensor);
  return tensor.detach().contiguous();
}

const ::at::Tensor& single(const GroupCall& call, const std::vector<::at::Tensor>& tensors) {
  if (tensors.size() != 1)
    throw call.refused(
        fmt::format("got {} tensors, want one a rank; call it for each of them", tensors.size()));
  return tensors.front();
}

const std::vector<::at::Tensor>& single(const GroupCall& call,
                                        const std::vector<std::vector<::at::Tensor>>& lists) {
  if (lists.size() != 1)
    throw call.refused(fmt::format("got {} lists of tensors, want one a rank", lists.size()));
  return lists.front();
}

TensorView memory(const GroupCall& call, const ::at::Tensor& dense) {
  const auto dtype = dtype_of_scalar(dense.scalar_type());
  if (!dtype)
    throw call.refused(fmt::format("tensors of {} can be moved but not reduced",
                                   ::c10::toString(dense.scalar_type())));
  return row_of(dense, *dtype);
}

TensorView raw_memory(const ::at::Tensor& dense) {
  return row_of(dense, dtype_of_scalar(dense.scalar_type()).value_or(DataType::u8));
}

int64_t unit_of(const ::at::Tensor& tensor) {
  return dtype_of_scalar(tensor.scalar_type()) ? 1 : static_cast<int64_t>(tensor.element_size());
}

Parts::Parts(const GroupCall& call, const std::vector<::at::Tensor>& tensors, int ranks, Use use) {
  if (tensors.size() != static_cast<size_t>(ranks))
    throw call.refused(
        fmt::format("got {} tensors, want one for each of {} ranks", tensors.size(), ranks));
  int64_t total = 0;
  for (const auto& tensor : tensors) {
    check(call, tensor);
    if (tensor.scalar_type() != tensors.front().scalar_type())
      throw call.refused(fmt::format("tensors of {} and {} came together, want one type",
                                     ::c10::toString(tensors.front().scalar_type()),
                                     ::c10::toString(tensor.scalar_type())));
    tensors_.push_back(tensor.detach());
    counts_.push_back(tensor.numel());
    total += tensor.numel();
  }
  if (use == Use::output) {
    flat_ = ::at::empty({total}, tensors_.front().options());
    return;
  }
  std::vector<::at::Tensor> rows;
  for (const auto& tensor : tensors_) rows.push_back(tensor.reshape({-1}));
  flat_ = ::at::cat(rows);
}

std::vector<int64_t> Parts::rows() const {
  auto rows = counts_;
  for (auto& count : rows) count *= unit_of(flat_);
  return rows;
}

void Parts::hand_out() const {
  int64_t begin = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].copy_(flat_.narrow(0, begin, counts_[i]).view(tensors_[i].sizes()));
    begin += counts_[i];
  }
}

void check_alike(const GroupCall& call, const ::at::Tensor& input, const ::at::Tensor& output,
                 int64_t count) {
  if (input.scalar_type() != output.scalar_type())
    throw call.refused(fmt::format("its input has elements of {} and its output of {}",
                                   ::c10::toString(input.scalar_type()),
                                   ::c10::toString(output.scalar_type())));
  if (input.numel() != count)
    throw call.refused(fmt::format("its input has {} elements where its output has room for {}",
                                   input.numel(), count));
}

}  // namespace tutti::torch
