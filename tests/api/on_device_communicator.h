#pragma once

#include "tests/support/ranks.h"
#include "tutti/adapters/exchange/adasum.h"
#include "tutti/adapters/exchange/alike.h"
#include "tutti/adapters/exchange/noise_scale.h"
#include "tutti/adapters/exchange/rounds.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"

// A program that runs the API suite on a device includes this file before everything else. The
// cases are written for host memory. Here they get a communicator that declares all that memory as
// the fake device's, whose memory the host can read when a Work is done. The compiled library keeps
// the real communicator.

namespace tutti {

class OnDeviceCommunicator {
 public:
  explicit OnDeviceCommunicator(Communicator& communicator) : inner_(&communicator) {}
  explicit OnDeviceCommunicator(std::unique_ptr<Communicator> own)
      : own_(std::move(own)), inner_(own_.get()) {}
  operator Communicator&() const { return *inner_; }

  int rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }
  int local_rank() const { return inner_->local_rank(); }
  int local_size() const { return inner_->local_size(); }
  int hosts() const { return inner_->hosts(); }
  std::string backend() const { return inner_->backend(); }
  const Options& options() const { return inner_->options(); }
  Statistics statistics() const { return inner_->statistics(); }

  Work allreduce(std::string_view name, TensorView tensor, ReduceOp op = ReduceOp::average) {
    return inner_->allreduce(name, there(tensor), op);
  }
  Work allreduce(std::string_view name, TensorView tensor, const ReduceOptions& options) {
    return inner_->allreduce(name, there(tensor), options);
  }
  Work allreduce(std::string_view name, TensorView input, TensorView output,
                 const ReduceOptions& options) {
    return inner_->allreduce(name, there(input), there(output), options);
  }
  Work allreduce(const TensorHandle& handle, TensorView tensor, const ReduceOptions& options = {}) {
    return inner_->allreduce(handle, there(tensor), options);
  }
  Work grouped_allreduce(std::string_view group, std::span<const NamedTensor> tensors,
                         const ReduceOptions& options = {}) {
    return inner_->grouped_allreduce(group, there(tensors), options);
  }
  Work sparse_allreduce(std::string_view name, SparseTensor tensor,
                        ReduceOp op = ReduceOp::average) {
    return inner_->sparse_allreduce(name, {there(tensor.indices), there(tensor.values)}, op);
  }
  Work allgather(std::string_view name, TensorView input) {
    return inner_->allgather(name, there(input));
  }
  Work allgather(std::string_view name, TensorView input, TensorView output) {
    return inner_->allgather(name, there(input), there(output));
  }
  Work grouped_allgather(std::string_view group, std::span<const NamedTensor> tensors) {
    return inner_->grouped_allgather(group, there(tensors));
  }
  Work broadcast(std::string_view name, TensorView tensor, int root = 0) {
    return inner_->broadcast(name, there(tensor), root);
  }
  Work reduce(std::string_view name, TensorView input, TensorView output, int root = 0,
              ReduceOp op = ReduceOp::sum) {
    return inner_->reduce(name, there(input), there(output), root, op);
  }
  Work broadcast(std::string_view name, TensorView input, TensorView output, int root) {
    return inner_->broadcast(name, there(input), there(output), root);
  }
  Work gather(std::string_view name, TensorView input, int root = 0) {
    return inner_->gather(name, there(input), root);
  }
  Work gather(std::string_view name, TensorView input, TensorView output, int root = 0) {
    return inner_->gather(name, there(input), there(output), root);
  }
  Work scatter(std::string_view name, TensorView input, TensorView output, int root,
               std::span<const int64_t> rows = {}) {
    return inner_->scatter(name, there(input), there(output), root, rows);
  }
  Work reduce_scatter(std::string_view name, TensorView input, TensorView output,
                      const ReduceOptions& options, std::span<const int64_t> rows = {}) {
    return inner_->reduce_scatter(name, there(input), there(output), options, rows);
  }
  Work alltoall(std::string_view name, TensorView input, TensorView output,
                std::span<const int64_t> splits) {
    return inner_->alltoall(name, there(input), there(output), splits);
  }
  Work scatter(std::string_view name, TensorView input, int root = 0,
               std::span<const int64_t> rows = {}) {
    return inner_->scatter(name, there(input), root, rows);
  }
  Work reduce_scatter(std::string_view name, TensorView input, const ReduceOptions& options = {},
                      std::span<const int64_t> rows = {}) {
    return inner_->reduce_scatter(name, there(input), options, rows);
  }
  Work grouped_reduce_scatter(std::string_view group, std::span<const NamedTensor> tensors,
                              const ReduceOptions& options = {}) {
    return inner_->grouped_reduce_scatter(group, there(tensors), options);
  }
  Work alltoall(std::string_view name, TensorView input, std::span<const int64_t> splits = {}) {
    return inner_->alltoall(name, there(input), splits);
  }
  Work send(std::string_view name, TensorView tensor, int to) {
    return inner_->send(name, there(tensor), to);
  }
  Work recv(std::string_view name, TensorView tensor, int from) {
    return inner_->recv(name, there(tensor), from);
  }
  Work barrier(std::string_view name = "barrier") { return inner_->barrier(name); }
  Work join() { return inner_->join(); }

  void allreduce_blocking(std::string_view name, const TensorView& tensor,
                          ReduceOp op = ReduceOp::average) {
    inner_->allreduce_blocking(name, there(tensor), op);
  }
  void broadcast_blocking(std::string_view name, const TensorView& tensor, int root = 0) {
    inner_->broadcast_blocking(name, there(tensor), root);
  }
  void barrier_blocking() { inner_->barrier_blocking(); }
  std::vector<std::byte> broadcast_made_bytes(std::string_view name,
                                              const std::function<std::vector<std::byte>()>& make,
                                              int root = 0) {
    return inner_->broadcast_made_bytes(name, make, root);
  }
  std::vector<std::byte> broadcast_bytes(std::string_view name, std::span<const std::byte> bytes,
                                         int root = 0) {
    return inner_->broadcast_bytes(name, bytes, root);
  }
  std::vector<std::vector<std::byte>> allgather_bytes(std::string_view name,
                                                      std::span<const std::byte> bytes) {
    return inner_->allgather_bytes(name, bytes);
  }
  TensorHandle declare(std::string_view name, Shape shape, DataType dtype) {
    return inner_->declare(name, shape, dtype);
  }
  std::unique_ptr<OnDeviceCommunicator> split(int color, int key = 0) {
    auto made = inner_->split(color, key);
    return made ? std::make_unique<OnDeviceCommunicator>(std::move(made)) : nullptr;
  }
  void start_timeline(const std::string& file) { inner_->start_timeline(file); }
  void stop_timeline() { inner_->stop_timeline(); }
  void timeline_span(std::string_view name, Clock::time_point begin, Clock::time_point end) {
    inner_->timeline_span(name, begin, end);
  }

 private:
  static TensorView there(const TensorView& view) {
    if (view.device().kind != DeviceKind::cpu || view.data() == nullptr) return view;
    return {view.data(), view.shape(), view.dtype(), Device{DeviceKind::fake, 0}};
  }
  static std::vector<NamedTensor> there(std::span<const NamedTensor> tensors) {
    std::vector<NamedTensor> all;
    for (const auto& [name, tensor] : tensors) all.push_back({name, there(tensor)});
    return all;
  }
  std::unique_ptr<Communicator> own_;
  Communicator* inner_;
};

}  // namespace tutti

#define Communicator OnDeviceCommunicator
