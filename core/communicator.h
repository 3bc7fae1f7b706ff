#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/cpp20.h"
#include "tutti/collectives/collective.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/settings/reduce_options.h"
#include "tutti/core/settings/statistics.h"
#include "tutti/core/shared_region.h"
#include "tutti/core/work.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

class CommunicatorState;
class GradientArena;
class PersistentAllreduce;
struct DeclaredTensor;
struct OperationCall;

/// A member of a group.
struct NamedTensor {
  std::string name;   // unique in its group
  TensorView tensor;  // borrowed
};

/// A name that was looked up once; see Communicator::declare(). A copy is the same name. The result
/// of the look-up lives as long as any handle.
class TensorHandle {
 public:
  TensorHandle() = default;

 private:
  friend class Communicator;
  friend class OperationName;
  std::shared_ptr<DeclaredTensor> declared_;
};

/// The key by which the ranks match an operation: a name, or a handle of one, which saves the
/// look-up. Borrowed for the call.
class OperationName {
 public:
  /// Any text.
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> OperationName(const Text& name)
      : name_(name) {}
  OperationName(const TensorHandle& handle) : handle_(&handle) {}  // made by declare()

 private:
  friend class Communicator;
  std::string_view name_;
  const TensorHandle* handle_ = nullptr;
};

/// A member of a group whose result goes elsewhere.
struct NamedTransfer {
  std::string name;       // unique in its group
  ConstTensorView input;  // borrowed
  TensorView output;      // borrowed
};

/// The sparse rows of a larger tensor.
struct SparseTensor {
  TensorView indices;  // i64[k], rows of the larger tensor
  TensorView values;   // [k, ...], of any float type
};

/// One member of a group of ranks that act together. Every rank makes it at the same time. Any
/// thread may call anything. Operations are matched over all ranks by name, whatever the order in
/// which each rank submits them. The memory of a tensor belongs to the operation until its Work is
/// done. Wrong use throws at once. If ranks disagree, Work::wait throws the same Error on every
/// rank, and nothing else is harmed. After a rank is lost, every call throws that Error until a new
/// Communicator is made (create or shrink).
class Communicator {
 public:
  /// Finds the other ranks and connects to them. Fields that `options` leave unset come from the
  /// launcher and the TUTTI_ variables, so create({.backend = "tcp"}) also makes this rank of the
  /// job. Throws Error(timeout | authentication | version | unavailable) that says who is missing.
  static std::unique_ptr<Communicator> create(Options options = {});
  /// Says goodbye; pending operations fail with Error(closed). Never throws, has a deadline.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;  // this rank's number, from 0
  int size() const;  // number of ranks
  /// This rank's number among the ranks of this host.
  int local_rank() const;
  int local_size() const;          // number of ranks on this host
  int hosts() const;               // number of hosts with ranks
  std::string backend() const;     // the chosen one: "shm"
  const Options& options() const;  // those that it was made with

  // --- asynchronous: each returns at once; the name is matched over all ranks ---

  /// Reduces in place, over all ranks that have not joined. Shape, dtype, op, scales, wire and
  /// priority must agree. `average` is the mean of the ranks' tensors, which is right for gradients
  /// that are means over each rank's batch. If a trainer sums over its batch, use `sum`. With
  /// `average` its steps become smaller by a factor of the number of ranks, without an error.
  Work allreduce(OperationName name, TensorView tensor, ReduceOp op = ReduceOp::average);
  /// Does the same with scales, a wire type or a priority.
  Work allreduce(OperationName name, TensorView tensor, const ReduceOptions& options);
  /// Reduces `count` elements from `data` on, in place. All other calls take {data, count} for a
  /// tensor.
  template <ElementType T>
  Work allreduce(OperationName name, T* data, int64_t count, ReduceOp op = ReduceOp::average) {
    return allreduce(name, TensorView(data, count), op);
  }
  /// Reduces out of place: `input` is only read. `output` has its shape and dtype; it is separate
  /// memory or the same memory.
  Work allreduce(OperationName name, ConstTensorView input, TensorView output,
                 const ReduceOptions& options = {});
  /// All or none: the members are reduced once all of them are there on every rank. `group` is
  /// matched like a name. One Work stands for all members.
  Work grouped_allreduce(std::string_view group, std::span<const NamedTensor> tensors,
                         const ReduceOptions& options = {});
  /// Does the same out of place.
  Work grouped_allreduce(std::string_view group, std::span<const NamedTransfer> tensors,
                         const ReduceOptions& options = {});
  /// Sums (or averages) sparse rows. output(0) has the indices and output(1) the values of all
  /// ranks, in rank order; equal indices are not merged. average divides the values by the number
  /// of ranks.
  Work sparse_allreduce(std::string_view name, SparseTensor tensor,
                        ReduceOp op = ReduceOp::average);

  /// output() is the ranks' tensors one after another along the first dimension. Their extents may
  /// differ in that dimension only.
  Work allgather(OperationName name, ConstTensorView input);
  /// Does the same into the caller's memory, whose rows must be the sum of all. The input may be
  /// this rank's part of the output.
  Work allgather(OperationName name, ConstTensorView input, TensorView output);
  /// Gathers every member by itself; output(i) is the result of tensors[i].
  Work grouped_allgather(std::string_view group, std::span<const NamedTensor> tensors);
  /// Does the same into the caller's memory.
  Work grouped_allgather(std::string_view group, std::span<const NamedTransfer> tensors);
  /// Copies root's contents to all ranks, in place.
  Work broadcast(OperationName name, TensorView tensor, int root = 0);
  /// Copies root's `input` to the `output` of all ranks, which has the same shape and dtype. Other
  /// ranks' `input` is ignored.
  Work broadcast(OperationName name, ConstTensorView input, TensorView output, int root = 0);
  /// The result is at root only (`output` is ignored elsewhere; it may equal input).
  Work reduce(OperationName name, ConstTensorView input, TensorView output, int root = 0,
              ReduceOp op = ReduceOp::sum);
  /// output() at root has all ranks' rows in rank order; elsewhere it is empty.
  Work gather(OperationName name, ConstTensorView input, int root = 0);
  /// Does the same into the caller's memory, which is used at root only; its rows must be the sum
  /// of all. At root the input may be the root's part of the output.
  Work gather(OperationName name, ConstTensorView input, TensorView output, int root = 0);
  /// Splits root's `input` by `rows` (one number per rank; empty: equal parts). output() is this
  /// rank's part. Other ranks' `input` is ignored.
  Work scatter(OperationName name, ConstTensorView input, int root = 0,
               std::span<const int64_t> rows = {});
  /// Does the same into the caller's memory, whose rows must be this rank's part. At root the
  /// output may be its part of the input.
  Work scatter(OperationName name, ConstTensorView input, TensorView output, int root = 0,
               std::span<const int64_t> rows = {});
  /// output() is this rank's share of the reduced rows. `rows` splits them (empty: equal parts, the
  /// remainder to the lowest ranks).
  Work reduce_scatter(OperationName name, ConstTensorView input, const ReduceOptions& options = {},
                      std::span<const int64_t> rows = {});
  /// Does the same into the caller's memory, whose rows must be this rank's share. The output may
  /// be the beginning of the input (as in MPI), or this rank's part of it (as in NCCL).
  Work reduce_scatter(OperationName name, ConstTensorView input, TensorView output,
                      const ReduceOptions& options, std::span<const int64_t> rows = {});
  /// Scatters every member by itself, in equal parts; output(i) is the result of tensors[i].
  Work grouped_reduce_scatter(std::string_view group, std::span<const NamedTensor> tensors,
                              const ReduceOptions& options = {});
  /// Does the same into the caller's memory.
  Work grouped_reduce_scatter(std::string_view group, std::span<const NamedTransfer> tensors,
                              const ReduceOptions& options = {});
  /// Sends rows of `input` to every rank: `splits` rows to each (empty: equal parts). output() has
  /// the rows that the others sent here, in rank order; received_counts() has their numbers.
  Work alltoall(OperationName name, ConstTensorView input, std::span<const int64_t> splits = {});
  /// Does the same into the caller's memory, which must have exactly the rows that the others send
  /// here. The output may be the input itself.
  Work alltoall(OperationName name, ConstTensorView input, TensorView output,
                std::span<const int64_t> splits);
  /// Sends to one rank; matched by name between the two ranks. The Work is done when `tensor` may
  /// be written again.
  Work send(OperationName name, ConstTensorView tensor, int to);
  Work recv(OperationName name, TensorView tensor, int from);  // see send
  /// Receives from whichever rank sends this name here; Work::source() returns that rank. If
  /// several ranks send, the send that reached rank 0 first is taken. The others wait for the next
  /// receive, so nothing is lost. A recv() from that very rank is served first.
  Work recv_any(OperationName name, TensorView tensor);
  Work barrier(OperationName name = "barrier");  // done when all ranks have arrived
  /// This rank is out of data. Until every rank has joined, it takes part in the others' allreduces
  /// without data, and averages divide by the number of ranks that have not joined. The Work is
  /// done when all have joined; output() is an i64 scalar, the last rank to join.
  Work join();

  // --- blocking: the caller drives; no thread is woken ---

  /// For results that a program waits for anyway. In shared memory nothing is negotiated: every
  /// rank, joined ones too, makes its blocking calls, whatever their kinds, in one order, as with
  /// MPI. If the calls differ in kind, name, count, dtype, op, root or rows, all ranks get
  /// Error(mismatch) that says who called what. Without shared memory the calls are matched by
  /// name.
  void allreduce_blocking(std::string_view name, const TensorView& tensor,
                          ReduceOp op = ReduceOp::average);
  /// Reduces `count` elements from `data` on, in place.
  template <ElementType T>
  void allreduce_blocking(std::string_view name, T* data, int64_t count,
                          ReduceOp op = ReduceOp::average) {
    allreduce_blocking(name, TensorView(data, Shape{count}, dtype_of<T>()), op);
  }
  /// Reduces one number: returns the result of all ranks' `value`s.
  template <ElementType T>
  requires(!std::is_pointer_v<T>) [[nodiscard]] T
      allreduce_blocking(std::string_view name, T value, ReduceOp op = ReduceOp::average) {
    allreduce_blocking(name, &value, 1, op);
    return value;
  }
  /// Reduces out of place, as allreduce().
  void allreduce_blocking(std::string_view name, const ConstTensorView& input,
                          const TensorView& output, ReduceOp op = ReduceOp::average);
  /// Copies root's contents to all ranks, in place.
  void broadcast_blocking(std::string_view name, const TensorView& tensor, int root = 0);
  /// Copies one number: returns root's.
  template <ElementType T>
  requires(!std::is_pointer_v<T>) [[nodiscard]] T
      broadcast_blocking(std::string_view name, T value, int root = 0) {
    broadcast_blocking(name, TensorView(&value, 1), root);
    return value;
  }
  /// The result is at root only: `output` is ignored elsewhere, and may be the input.
  void reduce_blocking(std::string_view name, const ConstTensorView& input,
                       const TensorView& output, int root = 0, ReduceOp op = ReduceOp::sum);
  /// Puts the ranks' rows one after another, on all ranks. `rows` has the number of each rank, the
  /// same list on all ranks; empty: all ranks give the same number. The input may be this rank's
  /// part of the output.
  void allgather_blocking(std::string_view name, const ConstTensorView& input,
                          const TensorView& output, std::span<const int64_t> rows = {});
  /// Returns one number of each rank.
  template <ElementType T>
  requires(!std::is_pointer_v<T>)
      [[nodiscard]] std::vector<T> allgather_blocking(std::string_view name, T value) {
    std::vector<T> all(static_cast<size_t>(size()));
    allgather_blocking(name, ConstTensorView(&value, 1),
                       TensorView(all.data(), static_cast<int64_t>(all.size())));
    return all;
  }
  /// Does the same at root only; `output` is ignored elsewhere.
  void gather_blocking(std::string_view name, const ConstTensorView& input,
                       const TensorView& output, int root = 0, std::span<const int64_t> rows = {});
  /// Splits root's `input` by `rows`, the same list on all ranks (empty: equal parts). Other ranks'
  /// `input` is ignored. At root the output may be its part of the input.
  void scatter_blocking(std::string_view name, const ConstTensorView& input,
                        const TensorView& output, int root = 0, std::span<const int64_t> rows = {});
  /// The output is this rank's share of the reduced rows, which `rows` splits as in
  /// scatter_blocking(). It may be in place as in reduce_scatter().
  void reduce_scatter_blocking(std::string_view name, const ConstTensorView& input,
                               const TensorView& output, ReduceOp op = ReduceOp::average,
                               std::span<const int64_t> rows = {});
  /// Sends equal parts of the rows to every rank, in rank order; the output may be the input
  /// itself.
  void alltoall_blocking(std::string_view name, const ConstTensorView& input,
                         const TensorView& output);
  void barrier_blocking();  // returns when all ranks have arrived
  /// Sends to one rank and returns when `tensor` may be written again. That may last until rank
  /// `to` has called recv_blocking(). The n-th of these calls from one rank to another meets the
  /// n-th receive there. Both must give the same name, dtype and number of elements, else both
  /// throw Error(mismatch) and nothing is written. Without shared memory they are matched by name.
  void send_blocking(std::string_view name, const ConstTensorView& tensor, int to);
  void recv_blocking(std::string_view name, const TensorView& tensor, int from);  // see there
  /// Sends and receives at once, as MPI_Sendrecv, so that ranks in a ring do not wait for each
  /// other. The two ways have names of their own ("from 0" and "from 3", say), and their memory
  /// must not overlap. If either fails, the error is thrown when both are over.
  void sendrecv_blocking(std::string_view send_name, const ConstTensorView& input, int to,
                         std::string_view recv_name, const TensorView& output, int from);
  /// Returns the bytes of rank `root`, of any length, on every rank. Matched by name, as
  /// allgather_bytes().
  std::vector<std::byte> broadcast_bytes(std::string_view name, std::span<const std::byte> bytes,
                                         int root = 0);
  /// Does the same for bytes that `make` returns. It is called at the root only. If it throws,
  /// every rank gets an Error(invalid_argument) with the text of that error, instead of waiting for
  /// ever.
  std::vector<std::byte> broadcast_made_bytes(std::string_view name,
                                              const std::function<std::vector<std::byte>()>& make,
                                              int root = 0);
  /// Returns the bytes of every rank, on every rank.
  std::vector<std::vector<std::byte>> allgather_bytes(std::string_view name,
                                                      std::span<const std::byte> bytes);

  /// Looks a name up once, for loops over many small tensors. The handle stands for the name in
  /// every call. The input of such a call must have this dtype and shape; for kinds that have no
  /// rows it only needs this number of elements. One handle may be used for calls of different
  /// kinds.
  TensorHandle declare(std::string_view name, Shape shape, DataType dtype);

  /// Returns `bytes` bytes of zeroed memory. If the backend shares memory, the ranks of this host
  /// reach it, and collectives read and write it where it is. Throws Error(out_of_memory). Each
  /// rank may allocate as it likes.
  SharedRegion allocate(int64_t bytes);

  /// Returns a communicator of the ranks that pass the same color, ordered by (key, rank).
  /// Collective: a rank with a negative color takes part too, and gets null.
  std::unique_ptr<Communicator> split(int color, int key = 0);
  /// After a loss: returns a communicator of the surviving ranks, in the old order, of a new epoch.
  /// Every survivor calls it. This object can only be destroyed afterwards.
  std::unique_ptr<Communicator> shrink(Deadline deadline = Deadline::after(30));

  /// Does what the destructor does, but earlier: says goodbye. Threads that wait, pending
  /// operations and all later calls get Error(closed). Any thread may call it, also while others
  /// use this object; further calls do nothing. Never throws, has a deadline. `error` is the reason
  /// why the program closes, in its own words (one line, of which 400 bytes are used). The other
  /// ranks' errors contain it, and tutti-run names this rank as the one that failed first. The
  /// destructor gives such a reason by itself while an exception unwinds the stack.
  void close(std::string_view error = {}) noexcept;

  /// Returns the counters of this Communicator. They include every Work that a thread has seen
  /// done, and the blocking calls of that thread. Any thread.
  Statistics statistics() const;
  /// Starts and stops the timeline at run time; the file is complete after stop.
  void start_timeline(const std::string& file);
  void stop_timeline();  // see start_timeline
  /// Adds a span of the user's own to the timeline; does nothing if it is off.
  void timeline_span(std::string_view name, Clock::time_point begin, Clock::time_point end);

 private:
  friend class GradientArena;
  friend class PersistentAllreduce;
  std::string_view text_of(const OperationName& name) const;
  Work start(const OperationName& name, OperationCall call, bool ring = true);
  void check_pair(std::string_view name, int peer) const;
  Work start_pair(const OperationName& name, CollectiveKind kind, const TensorView& tensor,
                  int peer, bool ring = true);
  explicit Communicator(std::shared_ptr<CommunicatorState> state);
  std::shared_ptr<CommunicatorState> state_;
  const int exceptions_;  // in flight in the thread that made this
};

}  // namespace tutti
