#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tutti/core/communicator.h"

namespace tutti {

/// An allreduce, in place, that is prepared once and then launched any number of times for the same
/// GPU tensors. MPI 4 calls such operations persistent. launch() only puts kernels on a stream. It
/// uses no engine and no messages, so a CUDA graph may contain it, together with the step before
/// and after it. The ranks' kernels wait for each other on the GPUs. Small tensors are sent as
/// packets, or every rank reduces all of them. For large tensors each rank reduces a part and
/// writes it into the memory of all ranks. Sums are computed in rank order, and are equal bit for
/// bit to the sums of backend peer.
///
/// It works for at most 8 ranks on one host. Each rank has its own GPU whose memory the other ranks
/// can access, or the ranks are threads and share one GPU. On a shared GPU, CUDA cannot allocate
/// memory or load kernels while a kernel waits. So all ranks must be ready before the first rank
/// launches. The launches of all ranks with the same sequence number form one round. All ranks must
/// therefore launch each object equally often, and launch several objects in the same order.
///
/// A rank's kernel gives up a round if it has waited too long for another rank, or if the
/// Communicator has ended. The limit is Options::operation_timeout, or 60 s if that is 0. From then
/// on check() throws, and nothing is reduced.
class PersistentAllreduce {
 public:
  /// Collective: every rank calls it with the same options (priority has no effect here), and with
  /// tensors of equal shapes and dtypes in the same order. `name` distinguishes this object from
  /// others that are made at the same time. The tensors' memory must stay where it is while rounds
  /// may run, and the Communicator must outlive this object. All ranks throw Error(mismatch) if the
  /// ranks' arguments differ, Error(unavailable) if their GPUs cannot run it, and
  /// Error(out_of_memory). Only this rank throws Error(invalid_argument), before the other ranks
  /// learn of the call. The reasons are tensors that are not on one GPU, empty tensors, and an op
  /// that the dtype does not have.
  PersistentAllreduce(Communicator& communicator, std::string name,
                      std::span<const TensorView> tensors, const ReduceOptions& options = {});
  /// Prepares an allreduce of one tensor.
  PersistentAllreduce(Communicator& communicator, std::string name, const TensorView& tensor,
                      const ReduceOptions& options = {});
  /// Frees the memory, into which the other ranks write. So no round may run on any rank at that
  /// time, and no graph may launch one later.
  ~PersistentAllreduce();
  PersistentAllreduce(const PersistentAllreduce&) = delete;
  PersistentAllreduce& operator=(const PersistentAllreduce&) = delete;

  /// Puts the kernels of a round on `stream`, which may be capturing. Only one thread may call it
  /// at a time. Throws what check() throws.
  void launch(StreamRef stream);
  /// Throws Error(timeout) if a kernel waited too long; the error names the rank that was late.
  /// Throws the error that ended the Communicator, if any. check() only reads one flag in host
  /// memory. Call it after waiting for the work of a step.
  void check() const;
  /// Returns how the elements travel: "packets", "one_shot" or "two_shot".
  std::string_view variant() const;

 private:
  class Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace tutti
