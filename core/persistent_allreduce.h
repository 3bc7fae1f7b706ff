#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tutti/core/communicator.h"

namespace tutti {

/// An allreduce of the same tensors of a GPU, in place, that is prepared once and then launched any
/// number of times (MPI 4 calls such operations persistent). launch() only puts kernels on a
/// stream. No engine and no message take part, so a CUDA graph may contain it, together with the
/// step before and after it. The ranks' kernels wait for each other on the GPUs. Small tensors
/// travel as packets or are reduced by every rank. Of large tensors each rank reduces a part and
/// writes it into the memory of all ranks. Sums are those of backend peer to the bit, in the order
/// of ranks.
///
/// It serves at most 8 ranks on one host. Each has a GPU whose memory the others reach, or the
/// ranks are threads and share one GPU. CUDA cannot allocate or upload on a shared GPU while a
/// kernel waits there, so all ranks are made ready before the first one launches. Rounds are
/// matched by their number alone: all ranks launch equally often, and the rounds of one object in
/// one order.
///
/// A rank leaves the round if its kernel has waited for another rank for Options::operation_timeout
/// (60 s if that is 0), or if its Communicator is over. check() throws then, and nothing is reduced
/// any more.
class PersistentAllreduce {
 public:
  /// Collective: every rank calls it with tensors of equal shapes and dtypes in the same order, and
  /// the same options (priority has no effect here). `name` distinguishes it from others that are
  /// being made. The tensors' memory must stay where it is while rounds may run, and the
  /// Communicator must outlive this object. Throws on all ranks: Error(mismatch) if ranks differ,
  /// Error(unavailable) if their GPUs cannot do it, Error(out_of_memory). Throws on this rank
  /// alone, before others learn of it, Error(invalid_argument) for tensors that are not on one GPU,
  /// empty tensors, or an op that their dtype does not have.
  PersistentAllreduce(Communicator& communicator, std::string name,
                      std::span<const TensorView> tensors, const ReduceOptions& options = {});
  /// The same for one tensor.
  PersistentAllreduce(Communicator& communicator, std::string name, const TensorView& tensor,
                      const ReduceOptions& options = {});
  /// No round may be running on any rank, or be launched later by a graph, because ranks write into
  /// each other's memory.
  ~PersistentAllreduce();
  PersistentAllreduce(const PersistentAllreduce&) = delete;
  PersistentAllreduce& operator=(const PersistentAllreduce&) = delete;

  /// Launches a round in the order of `stream`, which may be capturing. One thread at a time.
  /// Throws what check() throws.
  void launch(StreamRef stream);
  /// Throws Error(timeout) that names the rank for which a kernel waited too long, or the error
  /// that ended the Communicator. It costs one load from host memory. Call it after the work of a
  /// step was waited for.
  void check() const;
  /// Returns how the elements travel: "packets", "one_shot" or "two_shot".
  std::string_view variant() const;

 private:
  class Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace tutti
