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

/// A name looked up once; see Communicator::declare. A copy is the same name. What was looked up
/// lives as long as a handle does.
class TensorHandle {
 public:
  TensorHandle() = default;

 private:
  friend class Communicator;
  friend class OperationName;
  std::shared_ptr<DeclaredTensor> declared_;
};

/// By which the ranks match an operation: a name, or a handle of one, which need not be looked up.
/// Borrowed for the call.
class OperationName {
 public:
  /// Any text.
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> OperationName(const Text& name)
      : name_(name) {}
  OperationName(const TensorHandle& handle) : handle_(&handle) {}  // of declare()

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

/// The sparse rows of a larger tensor: `indices` i64[k], `values` [k, ...].
struct SparseTensor {
  TensorView indices;  // i64[k], rows of the larger tensor
  TensorView values;   // [k, ...], of any float type
};

/// One member of a group of ranks that act together. Made by every rank at the same time; any
/// thread may call anything. Operations are matched over all ranks by name, in whatever order each
/// rank submits them; the memory of a tensor belongs to the operation until its Work is done.
/// Wrong use throws at once; what ranks disagree on throws the same Error on every rank from
/// Work::wait and harms nothing else; after a rank is lost every call throws that Error until a new
/// Communicator is made (create or shrink).
class Communicator {
 public:
  /// Finds the other ranks and connects to them. Fields that `options` leave unset come from the
  /// launcher and the TUTTI_ variables: create({.backend = "tcp"}) is this rank of the job too.
  /// Throws Error(timeout | authentication | version | unavailable) that says who is missing.
  static std::unique_ptr<Communicator> create(Options options = {});
  /// Says goodbye; pending operations fail with Error(closed). Never throws, has a deadline.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;  // this one's number, from 0
  int size() const;  // how many ranks there are
  /// Among the ranks of this host.
  int local_rank() const;
  int local_size() const;          // ranks on this host
  int hosts() const;               // on how many hosts the ranks are
  std::string backend() const;     // that was chosen: "shm"
  const Options& options() const;  // that it was made with

  // --- asynchronous: each returns at once; the name is matched over all ranks ---

  /// In place, over all ranks that have not joined. Shape, dtype, op, scales, wire and priority
  /// must agree. `average` is the mean of what the ranks hand in: right for gradients that are
  /// means over each rank's batch. Where a trainer sums over its batch, take `sum`, or its steps
  /// become smaller by the number of ranks, silently.
  Work allreduce(OperationName name, TensorView tensor, ReduceOp op = ReduceOp::average);
  /// The same with scales, a wire type or a priority.
  Work allreduce(OperationName name, TensorView tensor, const ReduceOptions& options);
  /// `count` elements from `data` on, in place. All other calls take {data, count} for a tensor.
  template <ElementType T>
  Work allreduce(OperationName name, T* data, int64_t count, ReduceOp op = ReduceOp::average) {
    return allreduce(name, TensorView(data, count), op);
  }
  /// Out of place: `input` is only read. `output` has its shape and type and is other memory, or
  /// the same.
  Work allreduce(OperationName name, ConstTensorView input, TensorView output,
                 const ReduceOptions& options = {});
  /// All or none: no member is reduced before every member is there on every rank. `group` is
  /// matched like a name. One Work for all.
  Work grouped_allreduce(std::string_view group, std::span<const NamedTensor> tensors,
                         const ReduceOptions& options = {});
  /// The same out of place.
  Work grouped_allreduce(std::string_view group, std::span<const NamedTransfer> tensors,
                         const ReduceOptions& options = {});
  /// The sum (or average) of sparse rows: output(0) the indices, output(1) the values of all ranks,
  /// in rank order, equal indices not merged; average divides the values by the number of ranks.
  Work sparse_allreduce(std::string_view name, SparseTensor tensor,
                        ReduceOp op = ReduceOp::average);

  /// output() is the ranks' tensors one after another along the first dimension, whose extents may
  /// differ; the others must agree.
  Work allgather(OperationName name, ConstTensorView input);
  /// The same into the caller's memory, whose rows must be the sum of all. The input may be this
  /// rank's part of the output.
  Work allgather(OperationName name, ConstTensorView input, TensorView output);
  /// Every member by itself; output(i) is that of tensors[i].
  Work grouped_allgather(std::string_view group, std::span<const NamedTensor> tensors);
  /// The same into the caller's memory.
  Work grouped_allgather(std::string_view group, std::span<const NamedTransfer> tensors);
  /// In place: root's contents to all.
  Work broadcast(OperationName name, TensorView tensor, int root = 0);
  /// Root's `input`, which counts there only, to the `output` of all, which has its shape and type.
  Work broadcast(OperationName name, ConstTensorView input, TensorView output, int root = 0);
  /// Result at root only (`output` is ignored elsewhere; may equal input).
  Work reduce(OperationName name, ConstTensorView input, TensorView output, int root = 0,
              ReduceOp op = ReduceOp::sum);
  /// output() at root: all ranks' rows in rank order; empty elsewhere.
  Work gather(OperationName name, ConstTensorView input, int root = 0);
  /// The same into the caller's memory, which counts at root only; its rows must be the sum of all.
  /// There the input may be the root's part of the output.
  Work gather(OperationName name, ConstTensorView input, TensorView output, int root = 0);
  /// `input` counts at root only: its rows are dealt by `rows` (one number a rank; empty: equal
  /// parts). output() is this rank's part.
  Work scatter(OperationName name, ConstTensorView input, int root = 0,
               std::span<const int64_t> rows = {});
  /// The same into the caller's memory, whose rows must be this rank's part. At root the output may
  /// be its part of the input.
  Work scatter(OperationName name, ConstTensorView input, TensorView output, int root = 0,
               std::span<const int64_t> rows = {});
  /// output() is this rank's share of the reduced rows: `rows` deals them (empty: equal parts, the
  /// remainder to the lowest ranks).
  Work reduce_scatter(OperationName name, ConstTensorView input, const ReduceOptions& options = {},
                      std::span<const int64_t> rows = {});
  /// The same into the caller's memory, whose rows must be this rank's share. The output may be the
  /// beginning of the input (as in MPI), or this rank's part of it (as in NCCL).
  Work reduce_scatter(OperationName name, ConstTensorView input, TensorView output,
                      const ReduceOptions& options, std::span<const int64_t> rows = {});
  /// Every member by itself, in equal parts; output(i) is that of tensors[i].
  Work grouped_reduce_scatter(std::string_view group, std::span<const NamedTensor> tensors,
                              const ReduceOptions& options = {});
  /// The same into the caller's memory.
  Work grouped_reduce_scatter(std::string_view group, std::span<const NamedTransfer> tensors,
                              const ReduceOptions& options = {});
  /// Rows of `input` to every rank: `splits` rows to each (empty: equal parts). output() is what
  /// the others sent here, in rank order; received_counts() their rows.
  Work alltoall(OperationName name, ConstTensorView input, std::span<const int64_t> splits = {});
  /// The same into the caller's memory, whose rows must be as many as the others send here. The
  /// output may be the input itself.
  Work alltoall(OperationName name, ConstTensorView input, TensorView output,
                std::span<const int64_t> splits);
  /// Point to point: matched by name between the two ranks. The Work is done when `tensor` may be
  /// written again.
  Work send(OperationName name, ConstTensorView tensor, int to);
  Work recv(OperationName name, TensorView tensor, int from);  // see send
  /// From whichever rank sends this name here; Work::source() says which. Of several sends the one
  /// is taken of which rank 0 heard first; the others wait for the next receive, so nothing is
  /// lost. A receive from that very rank goes before.
  Work recv_any(OperationName name, TensorView tensor);
  Work barrier(OperationName name = "barrier");  // done when all came
  /// This rank is out of data: until every rank has joined it takes part in the others' allreduces
  /// with nothing, and averages divide by those that are left. The Work is done when all have
  /// joined; output() is an i64 scalar, the last rank to join.
  Work join();

  // --- blocking: the caller drives; no thread is woken ---

  /// For what a program waits for anyway. In shared memory nothing is negotiated: every rank,
  /// joined ones too, makes its blocking calls, whatever their kinds, in one order, as with MPI;
  /// ranks whose calls differ in kind, name, count, dtype, op, root or rows all get Error(mismatch)
  /// that says who called what. Elsewhere they are matched by name.
  void allreduce_blocking(std::string_view name, const TensorView& tensor,
                          ReduceOp op = ReduceOp::average);
  /// `count` elements from `data` on, in place.
  template <ElementType T>
  void allreduce_blocking(std::string_view name, T* data, int64_t count,
                          ReduceOp op = ReduceOp::average) {
    allreduce_blocking(name, TensorView(data, Shape{count}, dtype_of<T>()), op);
  }
  /// One number: what all ranks' `value`s come to.
  template <ElementType T>
  requires(!std::is_pointer_v<T>) [[nodiscard]] T
      allreduce_blocking(std::string_view name, T value, ReduceOp op = ReduceOp::average) {
    allreduce_blocking(name, &value, 1, op);
    return value;
  }
  /// Out of place, as allreduce().
  void allreduce_blocking(std::string_view name, const ConstTensorView& input,
                          const TensorView& output, ReduceOp op = ReduceOp::average);
  /// Root's contents to all, in place.
  void broadcast_blocking(std::string_view name, const TensorView& tensor, int root = 0);
  /// One number: root's.
  template <ElementType T>
  requires(!std::is_pointer_v<T>) [[nodiscard]] T
      broadcast_blocking(std::string_view name, T value, int root = 0) {
    broadcast_blocking(name, TensorView(&value, 1), root);
    return value;
  }
  /// Result at root only: `output` is ignored elsewhere, and may be the input.
  void reduce_blocking(std::string_view name, const ConstTensorView& input,
                       const TensorView& output, int root = 0, ReduceOp op = ReduceOp::sum);
  /// The ranks' rows one after another on all ranks. `rows`: of each rank, the same list on all
  /// ranks; empty: all give as many. The input may be this rank's part of the output.
  void allgather_blocking(std::string_view name, const ConstTensorView& input,
                          const TensorView& output, std::span<const int64_t> rows = {});
  /// One number of each rank.
  template <ElementType T>
  requires(!std::is_pointer_v<T>)
      [[nodiscard]] std::vector<T> allgather_blocking(std::string_view name, T value) {
    std::vector<T> all(static_cast<size_t>(size()));
    allgather_blocking(name, ConstTensorView(&value, 1),
                       TensorView(all.data(), static_cast<int64_t>(all.size())));
    return all;
  }
  /// The same at root only; `output` is ignored elsewhere.
  void gather_blocking(std::string_view name, const ConstTensorView& input,
                       const TensorView& output, int root = 0, std::span<const int64_t> rows = {});
  /// `input` counts at root only: its rows are dealt by `rows`, the same list on all ranks; empty:
  /// equal parts. At root the output may be its part of the input.
  void scatter_blocking(std::string_view name, const ConstTensorView& input,
                        const TensorView& output, int root = 0, std::span<const int64_t> rows = {});
  /// This rank's share of the reduced rows, dealt by `rows` as in scatter_blocking; in place as
  /// reduce_scatter().
  void reduce_scatter_blocking(std::string_view name, const ConstTensorView& input,
                               const TensorView& output, ReduceOp op = ReduceOp::average,
                               std::span<const int64_t> rows = {});
  /// Equal parts of the rows to every rank, in rank order; the output may be the input itself.
  void alltoall_blocking(std::string_view name, const ConstTensorView& input,
                         const TensorView& output);
  void barrier_blocking();  // returns when all came
  /// Point to point: returns when `tensor` may be written again, which may last until rank `to` has
  /// called recv_blocking(). The n-th of these calls from one rank to another meets the n-th
  /// receive there, and both must say the same name, dtype and number of elements, else both throw
  /// Error(mismatch) and nothing is written. Where no memory is shared they are matched by name.
  void send_blocking(std::string_view name, const ConstTensorView& tensor, int to);
  void recv_blocking(std::string_view name, const TensorView& tensor, int from);  // see there
  /// Both ways at once, as MPI_Sendrecv, so that ranks in a ring do not wait for each other. The
  /// two have names of their own ("from 0" and "from 3", say) and share no memory. If either fails,
  /// the error comes when both are over.
  void sendrecv_blocking(std::string_view send_name, const ConstTensorView& input, int to,
                         std::string_view recv_name, const TensorView& output, int from);
  /// Bytes of rank `root`, of whatever length, on every rank. Matched by name, as allgather_bytes.
  std::vector<std::byte> broadcast_bytes(std::string_view name, std::span<const std::byte> bytes,
                                         int root = 0);
  /// The same for bytes that `make` returns. It is called at the root only. If it throws, every
  /// rank gets an Error(invalid_argument) with the text of that error, so that no rank waits for
  /// bytes that cannot come.
  std::vector<std::byte> broadcast_made_bytes(std::string_view name,
                                              const std::function<std::vector<std::byte>()>& make,
                                              int root = 0);
  /// The bytes of every rank, on every rank.
  std::vector<std::vector<std::byte>> allgather_bytes(std::string_view name,
                                                      std::span<const std::byte> bytes);

  /// Looks a name up once, for loops over many small tensors. The handle stands for the name in
  /// every call; the input that it is given then must have this dtype and shape, or, of kinds that
  /// know no rows, as many elements. A handle of another kind's call before is fine.
  TensorHandle declare(std::string_view name, Shape shape, DataType dtype);

  /// Zeroed memory of `bytes` bytes that the ranks of this host reach, if the backend shares
  /// memory: collectives read and write it where it is. Throws Error(out_of_memory). This rank's
  /// own business; ranks need not ask alike.
  SharedRegion allocate(int64_t bytes);

  /// A communicator of the ranks that pass the same color, ordered by (key, rank). Collective; a
  /// negative color takes part and gets null.
  std::unique_ptr<Communicator> split(int color, int key = 0);
  /// After a loss: a communicator of the survivors, in old order, of a new epoch. Every survivor
  /// calls it. This one is then only good for destruction.
  std::unique_ptr<Communicator> shrink(Deadline deadline = Deadline::after(30));

  /// What the destructor does, before it: says goodbye; threads that wait, what is pending and all
  /// later calls get Error(closed). Any thread, also while others use this. Idempotent; never
  /// throws, has a deadline. `error`: because of which the program closes, in its words (one line,
  /// of which 400 bytes count): the other ranks' errors tell it, and tutti-run names this rank as
  /// the one that failed first. The destructor says so by itself while an exception unwinds the
  /// stack.
  void close(std::string_view error = {}) noexcept;

  /// Since it was made. A Work that a thread has seen done is counted, and its blocking calls are.
  /// Any thread.
  Statistics statistics() const;
  /// Starts and stops the timeline at run time; the file is whole after stop.
  void start_timeline(const std::string& file);
  void stop_timeline();  // see start_timeline
  /// A span or an instant of the user's own in the timeline (nothing if it is off).
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
  const int exceptions_;  // under way in the thread that made this
};

}  // namespace tutti
