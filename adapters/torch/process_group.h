#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tutti/core/communicator.h"

namespace tutti::torch {

struct GroupCall;
struct CallUnderWay;

/// From LibTorch 2.0 on a process group holds a Backend for each kind of device; before, it is one.
template <class Group>
concept HoldsBackends = requires(Group& group) {
  group.getDefaultBackend();
};
/// What this LibTorch calls for its collectives.
using C10dBase =
    std::conditional_t<HoldsBackends<::c10d::ProcessGroup>, ::c10d::Backend, ::c10d::ProcessGroup>;

/// c10d's calls over a Communicator, for C++ programs that speak c10d: in LibTorch 1.13 a
/// c10d::ProcessGroup, later a c10d::Backend for a group's CPU device. Tensors in host memory, of
/// every type where elements only move; results come back to tensors of any dense strides. c10d has
/// no names, so the ranks make a group's calls in one order, from one thread each; calls that
/// differ are told by wait() in one line. Sends and receives are matched by peer, tag and order,
/// apart from the rest. Every call throws Error(invalid_argument) for what it cannot take.
class ProcessGroup final : public C10dBase {
 public:
  using Tensors = std::vector<::at::Tensor>;                  // of one rank
  using TensorLists = std::vector<Tensors>;                   // one list a rank
  using StartedWork = ::c10::intrusive_ptr<::c10d::Work>;     // what each call returns
  using Store = ::c10::intrusive_ptr<::c10d::Store>;          // of torch's, all ranks reach it
  static constexpr std::chrono::minutes kDefaultTimeout{30};  // as c10d's own groups have it

  /// Over a communicator, whose ranks are the group's. `name` tells groups over one communicator
  /// apart; `timeout` is for waits that are given none.
  explicit ProcessGroup(std::shared_ptr<Communicator> comm, std::string name = "0",
                        std::chrono::milliseconds timeout = kDefaultTimeout);
  /// Leaves as Communicator::close() does, if nobody else has the communicator.
  ~ProcessGroup() override;

  /// A group of the ranks that share this store of torch's, over a communicator of its own; every
  /// one of them calls it. Groups of one name over one store come one after another. Settings come
  /// from TUTTI_ variables. Throws what Communicator::create throws.
  static ::c10::intrusive_ptr<ProcessGroup> create(
      const Store& store, int rank, int size, const std::string& name = "0",
      std::chrono::milliseconds timeout = kDefaultTimeout);

  Communicator& communicator() const { return *comm_; }                  // that carries the calls
  const std::string getBackendName() const override { return "tutti"; }  // for messages of torch's

  /// Root's contents to all.
  StartedWork broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options = {}) override;
  /// SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR, BXOR, and PREMUL_SUM by a number.
  StartedWork allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options = {}) override;
  /// Of several tensors, all or none.
  StartedWork allreduce_coalesced(Tensors& tensors,
                                  const ::c10d::AllreduceCoalescedOptions& options = {}) override;
  /// The same, of one tensor, at the root alone.
  StartedWork reduce(Tensors& tensors, const ::c10d::ReduceOptions& options = {}) override;
  /// Outputs may differ in size from rank to rank, as the inputs do.
  StartedWork allgather(TensorLists& outputs, Tensors& inputs,
                        const ::c10d::AllgatherOptions& options = {}) override;
  /// The same into one tensor, in equal parts.
  StartedWork _allgather_base(::at::Tensor& output, ::at::Tensor& input,
                              const ::c10d::AllgatherOptions& options = {}) override;
  /// outputs[rank][i] is inputs[i] of that rank.
  StartedWork allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const ::c10d::AllgatherOptions& options = {}) override;
  /// What all have, at the root alone, which has outputs.
  StartedWork gather(TensorLists& outputs, Tensors& inputs,
                     const ::c10d::GatherOptions& options = {}) override;
  /// The root's inputs, one to each rank.
  StartedWork scatter(Tensors& outputs, TensorLists& inputs,
                      const ::c10d::ScatterOptions& options = {}) override;
  /// This rank's part of what all ranks' lists come to.
  StartedWork reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const ::c10d::ReduceScatterOptions& options = {}) override;
  /// The same of one tensor, in equal parts.
  StartedWork _reduce_scatter_base(::at::Tensor& output, ::at::Tensor& input,
                                   const ::c10d::ReduceScatterOptions& options = {}) override;
  /// Rows of the first dimension by splits; none: equal parts.
  StartedWork alltoall_base(::at::Tensor& output, ::at::Tensor& input,
                            std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const ::c10d::AllToAllOptions& options = {}) override;
  /// One tensor to each rank, and one from each.
  StartedWork alltoall(Tensors& outputs, Tensors& inputs,
                       const ::c10d::AllToAllOptions& options = {}) override;
  /// Is over when the tensor may be written again. Tags tell messages of two ranks apart.
  StartedWork send(Tensors& tensors, int to, int tag) override;
  /// From that rank.
  StartedWork recv(Tensors& tensors, int from, int tag) override;
  /// Is over when all ranks came.
  StartedWork barrier(const ::c10d::BarrierOptions& options = {}) override;
  /// Nothing: numbers begin at 0.
  void setSequenceNumberForGroup() override {}
  /// How many collectives this rank has called.
  uint64_t getSequenceNumberForGroup() override;

  // No `override`: only a later LibTorch asks for these.
  /// _allgather_base of several.
  StartedWork allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const ::c10d::AllgatherOptions& options = {});
  /// _reduce_scatter_base of several.
  StartedWork reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const ::c10d::ReduceScatterOptions& options = {});
  void shutdown() { comm_->close(); }  // as abort(): whoever waits gets Error(closed)
  void abort() { comm_->close(); }     // see shutdown

 private:
  std::string next_name();
  std::string message(int from, int to, int tag);
  int peer(const GroupCall& call, int rank) const;
  int root(const GroupCall& call, int64_t rank) const;
  StartedWork started(::c10d::OpType type, CallUnderWay call) const;
  /// Several calls as one: `start` starts the one of a number.
  template <class Start>
  StartedWork started_together(::c10d::OpType type, size_t count, const Start& start) const;
  CallUnderWay gathered(const GroupCall& call, ::at::Tensor& output, const ::at::Tensor& input);
  CallUnderWay scattered(const GroupCall& call, ::at::Tensor& output, const ::at::Tensor& flat,
                         const std::vector<int64_t>& counts, const ::c10d::ReduceOp& op);
  CallUnderWay exchanged(const GroupCall& call, const ::at::Tensor& input,
                         const std::vector<int64_t>& sent, const ::at::Tensor& output,
                         const std::vector<int64_t>& expected, std::function<void()> back);

  const std::shared_ptr<Communicator> comm_;
  const std::string name_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // guards all below
  uint64_t calls_ = 0;
  std::map<std::tuple<int, int, int>, uint64_t> messages_;  // by sender, receiver and tag
};

/// The group as c10d's C++ interface takes it (c10d::ops, say): itself, or from LibTorch
/// 2.0 on a process group with this one for its CPU device.
template <class Whole = ::c10d::ProcessGroup>
::c10::intrusive_ptr<Whole> process_group(const ::c10::intrusive_ptr<ProcessGroup>& group) {
  if constexpr (HoldsBackends<Whole>) {
    auto whole = ::c10::make_intrusive<Whole>(group->getRank(), group->getSize());
    whole->setBackend(::c10::DeviceType::CPU, Whole::BackendType::CUSTOM, group);
    whole->setDefaultBackend(Whole::BackendType::CUSTOM);
    return whole;
  } else {
    return group;
  }
}

}  // namespace tutti::torch
