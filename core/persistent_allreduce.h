#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tutti/core/communicator.h"

namespace tutti {

/// An allreduce of the same tensors of a GPU, in place, that is prepared once and then launched any
/// number of times (MPI 4 calls such operations persistent). launch() only puts kernels on a
/// stream: no engine and no message take part, so a CUDA graph may hold it, with the step before
/// and after it. The ranks' kernels wait for each other on the GPUs: small tensors travel as
/// packets or are reduced by every rank, large ones by each rank in part, into the memory of all.
/// Sums are those of backend peer to the bit, in the order of ranks.
///
/// For at most 8 ranks on one host with a GPU each whose memory the others reach, or ranks that are
/// threads and share one: there CUDA allocates and uploads nothing while a kernel waits, so all of
/// them are ready before the first launches. Rounds are matched by their number alone: all ranks
/// launch equally often, and the rounds of one object in one order.
///
/// A rank whose kernel has waited for another's for Options::operation_timeout (60 s if that is 0),
/// or whose Communicator is over, leaves the round; check() says so, and nothing is reduced after
/// it.
class PersistentAllreduce {
 public:
  /// Collective: every rank calls it with tensors of equal shapes and dtypes in the same order, and
  /// the same options (priority is of no use here). `name` tells it from others that are being
  /// made. The tensors' memory must stay where it is while rounds may run, and the Communicator
  /// must outlive this. Throws on all ranks alike: Error(mismatch) where ranks differ,
  /// Error(unavailable) where their GPUs cannot do it, Error(out_of_memory); on this rank alone,
  /// before others hear of it, Error(invalid_argument) for tensors that are not on one GPU, empty
  /// ones, or an op that their dtype does not know.
  PersistentAllreduce(Communicator& communicator, std::string name,
                      std::span<const TensorView> tensors, const ReduceOptions& options = {});
  /// The same of one tensor.
  PersistentAllreduce(Communicator& communicator, std::string name, const TensorView& tensor,
                      const ReduceOptions& options = {});
  /// No round may be running on any rank, or be launched later by a graph: ranks write into each
  /// other's memory.
  ~PersistentAllreduce();
  PersistentAllreduce(const PersistentAllreduce&) = delete;
  PersistentAllreduce& operator=(const PersistentAllreduce&) = delete;

  /// A round in the order of `stream`, which may be capturing. One thread at a time. Throws what
  /// check() throws.
  void launch(StreamRef stream);
  /// Throws Error(timeout) that names the rank for which a kernel waited in vain, or what ended the
  /// Communicator. One load from the host's memory: call it when a step's work has been waited for.
  void check() const;
  /// How the elements travel: "packets", "one_shot" or "two_shot".
  std::string_view variant() const;

 private:
  class Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace tutti
