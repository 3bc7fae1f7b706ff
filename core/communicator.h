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

/// One tensor of a grouped operation.
struct NamedTensor {
  std::string name;   // unique in its group
  TensorView tensor;  // borrowed
};

/// A name whose look-up is already done; see Communicator::declare(). Copies share the result of
/// the look-up, which lives as long as any of them.
class TensorHandle {
 public:
  TensorHandle() = default;

 private:
  friend class Communicator;
  friend class OperationName;
  std::shared_ptr<DeclaredTensor> declared_;
};

/// The key by which the ranks match an operation. It is a name, or a TensorHandle, which saves the
/// look-up of its name. It does not own the name or the handle, which must live until the call
/// returns.
class OperationName {
 public:
  /// Takes a name from any type of text.
  template <class Text>
  requires std::convertible_to<const Text&, std::string_view> OperationName(const Text& name)
      : name_(name) {}
  OperationName(const TensorHandle& handle) : handle_(&handle) {}  // made by declare()

 private:
  friend class Communicator;
  std::string_view name_;
  const TensorHandle* handle_ = nullptr;
};

/// One tensor of a grouped operation whose result goes to separate memory.
struct NamedTransfer {
  std::string name;       // unique in its group
  ConstTensorView input;  // borrowed
  TensorView output;      // borrowed
};

/// A sparse tensor: some of the rows of a larger tensor.
struct SparseTensor {
  TensorView indices;  // i64[k], rows of the larger tensor
  TensorView values;   // [k, ...], of any float type
};

/// One member of a group of ranks that act together. All ranks create their members at the same
/// time. Any thread may call anything. The ranks match operations by name, whatever the order in
/// which each rank submits them. The memory of a tensor belongs to the operation until its Work is
/// done. Wrong use throws immediately. If the ranks' calls of one name disagree, Work::wait throws
/// the same Error on every rank, and other operations go on. After a rank is lost, every call
/// throws that Error until a new Communicator is made (create or shrink).
class Communicator {
 public:
  /// Finds the other ranks and connects to them. Fields that `options` leave unset come from the
  /// launcher and the TUTTI_ variables. So create({.backend = "tcp"}) still takes rank and size
  /// from the launcher. Throws Error(timeout | authentication | version | unavailable), whose text
  /// names the missing ranks.
  static std::unique_ptr<Communicator> create(Options options = {});
  /// Leaves the group in an orderly way, like close(). Pending operations fail with Error(closed).
  /// Never throws. Each of its waits has a deadline, Options::close_timeout.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;  // this rank's number, from 0
  int size() const;  // number of ranks
  /// This rank's number among the ranks of this host.
  int local_rank() const;
  int local_size() const;          // number of ranks on this host
  int hosts() const;               // number of hosts with ranks
  std::string backend() const;     // name of the chosen backend, such as "shm"
  const Options& options() const;  // the options with which this object was made

  // --- asynchronous: each call returns immediately; the ranks match the calls by name ---

  /// Reduces in place, over all ranks that have not joined. Shape, dtype, op, scales, wire and
  /// priority must agree. `average` is the mean of the ranks' tensors. That is right for gradients
  /// that are means over each rank's batch. If a trainer sums over its batch, use `sum`. With
  /// `average` its steps would be too small by a factor of the number of ranks, and no error would
  /// show it.
  Work allreduce(OperationName name, TensorView tensor, ReduceOp op = ReduceOp::average);
  /// Reduces in place, with scales, a wire type or a priority.
  Work allreduce(OperationName name, TensorView tensor, const ReduceOptions& options);
  /// Reduces `count` elements in place, starting at `data`. All other calls take {data, count} for
  /// a tensor.
  template <ElementType T>
  Work allreduce(OperationName name, T* data, int64_t count, ReduceOp op = ReduceOp::average) {
    return allreduce(name, TensorView(data, count), op);
  }
  /// Reduces out of place: `input` is only read. `output` must have the same shape and dtype. It
  /// may be separate memory or the input itself.
  Work allreduce(OperationName name, ConstTensorView input, TensorView output,
                 const ReduceOptions& options = {});
  /// Reduces all tensors or none of them, once every rank has submitted all of them. The ranks
  /// match `group` like a name. The Work is done when all tensors are reduced.
  Work grouped_allreduce(std::string_view group, std::span<const NamedTensor> tensors,
                         const ReduceOptions& options = {});
  /// Reduces a group out of place.
  Work grouped_allreduce(std::string_view group, std::span<const NamedTransfer> tensors,
                         const ReduceOptions& options = {});
  /// Sums (or averages) sparse rows. output(0) has the indices of all ranks and output(1) their
  /// values, in rank order. Equal indices are not merged. `average` divides the values by the
  /// number of ranks.
  Work sparse_allreduce(std::string_view name, SparseTensor tensor,
                        ReduceOp op = ReduceOp::average);

  /// output() has the ranks' tensors one after another along the first dimension. Only that
  /// dimension's extent may differ between the ranks.
  Work allgather(OperationName name, ConstTensorView input);
  /// Gathers into the caller's memory, which must have as many rows as the inputs of all ranks
  /// together. The input may be this rank's part of the output.
  Work allgather(OperationName name, ConstTensorView input, TensorView output);
  /// Gathers each tensor separately; output(i) is the result of tensors[i].
  Work grouped_allgather(std::string_view group, std::span<const NamedTensor> tensors);
  /// Gathers a group into the caller's memory.
  Work grouped_allgather(std::string_view group, std::span<const NamedTransfer> tensors);
  /// Copies root's contents to all ranks, in place.
  Work broadcast(OperationName name, TensorView tensor, int root = 0);
  /// Copies root's `input` to the `output` of all ranks. Both have the same shape and dtype. The
  /// `input` of the other ranks is ignored.
  Work broadcast(OperationName name, ConstTensorView input, TensorView output, int root = 0);
  /// Reduces to root only. On root `output` may be the input itself. On the other ranks it is
  /// ignored.
  Work reduce(OperationName name, ConstTensorView input, TensorView output, int root = 0,
              ReduceOp op = ReduceOp::sum);
  /// On root, output() has the rows of all ranks in rank order. On the other ranks it is empty.
  Work gather(OperationName name, ConstTensorView input, int root = 0);
  /// Gathers into the caller's memory, which is used on root only. It must have as many rows as the
  /// inputs of all ranks together. On root the input may be root's part of the output.
  Work gather(OperationName name, ConstTensorView input, TensorView output, int root = 0);
  /// Splits root's `input` by `rows` (the number of rows for each rank; empty: equal parts).
  /// output() is this rank's part. The `input` of the other ranks is ignored.
  Work scatter(OperationName name, ConstTensorView input, int root = 0,
               std::span<const int64_t> rows = {});
  /// Scatters into the caller's memory, which must have as many rows as this rank's part. On root
  /// the output may be root's part of the input.
  Work scatter(OperationName name, ConstTensorView input, TensorView output, int root = 0,
               std::span<const int64_t> rows = {});
  /// Reduces, and output() is this rank's share of the reduced rows. `rows` has the number of rows
  /// for each rank (empty: equal parts, the remainder to the lowest ranks).
  Work reduce_scatter(OperationName name, ConstTensorView input, const ReduceOptions& options = {},
                      std::span<const int64_t> rows = {});
  /// Reduces into the caller's memory, which must have as many rows as this rank's share. The
  /// output may be the beginning of the input (as in MPI), or this rank's part of it (as in NCCL).
  Work reduce_scatter(OperationName name, ConstTensorView input, TensorView output,
                      const ReduceOptions& options, std::span<const int64_t> rows = {});
  /// Reduces and scatters each tensor separately, in equal parts; output(i) is the result of
  /// tensors[i].
  Work grouped_reduce_scatter(std::string_view group, std::span<const NamedTensor> tensors,
                              const ReduceOptions& options = {});
  /// Scatters a group into the caller's memory.
  Work grouped_reduce_scatter(std::string_view group, std::span<const NamedTransfer> tensors,
                              const ReduceOptions& options = {});
  /// Sends rows of `input` to every rank. `splits` has the number of rows for each rank (empty:
  /// equal parts). output() has the received rows in rank order. received_counts() has the number
  /// of rows from each rank.
  Work alltoall(OperationName name, ConstTensorView input, std::span<const int64_t> splits = {});
  /// Exchanges into the caller's memory, which must have exactly as many rows as the ranks send to
  /// this rank. The output may be the input itself.
  Work alltoall(OperationName name, ConstTensorView input, TensorView output,
                std::span<const int64_t> splits);
  /// Sends to one rank. The two ranks match the send and its receive by name. The Work is done when
  /// `tensor` may be written again.
  Work send(OperationName name, ConstTensorView tensor, int to);
  Work recv(OperationName name, TensorView tensor, int from);  // see send
  /// Receives from whichever rank sends this name to this one; Work::source() returns that rank. If
  /// several ranks send, the send that reached rank 0 first is taken. The other sends wait for
  /// later receives, so nothing is lost. A recv() that names the sending rank takes the send before
  /// a recv_any() does.
  Work recv_any(OperationName name, TensorView tensor);
  Work barrier(OperationName name = "barrier");  // done when all ranks have arrived
  /// Declares that this rank is out of data. Until every rank has joined, this rank takes part in
  /// the other ranks' allreduces without data. Averages divide by the number of ranks that have not
  /// joined. The Work is done when all ranks have joined. output() is an i64 scalar, the last rank
  /// to join.
  Work join();

  // --- blocking: the calling thread does the work; no thread is woken ---

  /// Blocking calls are for results that a program waits for anyway. In shared memory nothing is
  /// negotiated. All ranks must make their blocking calls, of whatever kind, in the same order, as
  /// in MPI. This includes ranks that have joined. If the calls differ in kind, name, count, dtype,
  /// op, root or rows, all ranks get Error(mismatch), which names each rank's call. Without shared
  /// memory the calls are matched by name.
  void allreduce_blocking(std::string_view name, const TensorView& tensor,
                          ReduceOp op = ReduceOp::average);
  /// Reduces `count` elements in place, starting at `data`.
  template <ElementType T>
  void allreduce_blocking(std::string_view name, T* data, int64_t count,
                          ReduceOp op = ReduceOp::average) {
    allreduce_blocking(name, TensorView(data, Shape{count}, dtype_of<T>()), op);
  }
  /// Reduces one number per rank and returns the result.
  template <ElementType T>
  requires(!std::is_pointer_v<T>) [[nodiscard]] T
      allreduce_blocking(std::string_view name, T value, ReduceOp op = ReduceOp::average) {
    allreduce_blocking(name, &value, 1, op);
    return value;
  }
  /// Reduces out of place, like allreduce().
  void allreduce_blocking(std::string_view name, const ConstTensorView& input,
                          const TensorView& output, ReduceOp op = ReduceOp::average);
  /// Copies root's contents to all ranks, in place.
  void broadcast_blocking(std::string_view name, const TensorView& tensor, int root = 0);
  /// Returns the `value` of root.
  template <ElementType T>
  requires(!std::is_pointer_v<T>) [[nodiscard]] T
      broadcast_blocking(std::string_view name, T value, int root = 0) {
    broadcast_blocking(name, TensorView(&value, 1), root);
    return value;
  }
  /// Reduces to root only. On root `output` may be the input itself. On the other ranks it is
  /// ignored.
  void reduce_blocking(std::string_view name, const ConstTensorView& input,
                       const TensorView& output, int root = 0, ReduceOp op = ReduceOp::sum);
  /// Puts the rows of all ranks one after another, on all ranks. `rows` has the number of rows of
  /// each rank and must be the same list on all ranks. If it is empty, all ranks give the same
  /// number of rows. The input may be this rank's part of the output.
  void allgather_blocking(std::string_view name, const ConstTensorView& input,
                          const TensorView& output, std::span<const int64_t> rows = {});
  /// Returns the `value` of each rank, in rank order.
  template <ElementType T>
  requires(!std::is_pointer_v<T>)
      [[nodiscard]] std::vector<T> allgather_blocking(std::string_view name, T value) {
    std::vector<T> all(static_cast<size_t>(size()));
    allgather_blocking(name, ConstTensorView(&value, 1),
                       TensorView(all.data(), static_cast<int64_t>(all.size())));
    return all;
  }
  /// Gathers like allgather_blocking(), but on root only. On the other ranks `output` is ignored.
  void gather_blocking(std::string_view name, const ConstTensorView& input,
                       const TensorView& output, int root = 0, std::span<const int64_t> rows = {});
  /// Splits root's `input` by `rows`, the same list on all ranks (empty: equal parts). The `input`
  /// of the other ranks is ignored. On root the output may be root's part of the input.
  void scatter_blocking(std::string_view name, const ConstTensorView& input,
                        const TensorView& output, int root = 0, std::span<const int64_t> rows = {});
  /// Reduces, and the output is this rank's share of the reduced rows. `rows` splits them as in
  /// scatter_blocking(). The output may be in the input's memory, as in reduce_scatter().
  void reduce_scatter_blocking(std::string_view name, const ConstTensorView& input,
                               const TensorView& output, ReduceOp op = ReduceOp::average,
                               std::span<const int64_t> rows = {});
  /// Sends an equal part of the rows to every rank, in rank order. The output may be the input
  /// itself.
  void alltoall_blocking(std::string_view name, const ConstTensorView& input,
                         const TensorView& output);
  void barrier_blocking();  // returns when all ranks have arrived
  /// Sends to one rank and returns when `tensor` may be written again. The call may block until
  /// rank `to` has called recv_blocking(). If ranks A and B share memory, the n-th send of A to B
  /// matches the n-th receive of B from A. Both must give the same name, dtype and number of
  /// elements. Otherwise both throw Error(mismatch) and nothing is written. Without shared memory,
  /// a send matches the receive of the same name.
  void send_blocking(std::string_view name, const ConstTensorView& tensor, int to);
  void recv_blocking(std::string_view name, const TensorView& tensor, int from);  // see above
  /// Sends and receives at the same time, like MPI_Sendrecv, so that ranks in a ring do not wait
  /// for each other. The send and the receive have their own names ("from 0" and "from 3", say),
  /// and their memory must not overlap. If one of them fails, the call throws its error after both
  /// have ended.
  void sendrecv_blocking(std::string_view send_name, const ConstTensorView& input, int to,
                         std::string_view recv_name, const TensorView& output, int from);
  /// Returns the bytes of rank `root` on every rank. The bytes may have any length. The calls are
  /// matched by name, as in allgather_bytes().
  std::vector<std::byte> broadcast_bytes(std::string_view name, std::span<const std::byte> bytes,
                                         int root = 0);
  /// Broadcasts the bytes that `make` returns. Only root calls `make`. If `make` throws, every rank
  /// gets an Error(invalid_argument) with the text of that error.
  std::vector<std::byte> broadcast_made_bytes(std::string_view name,
                                              const std::function<std::vector<std::byte>()>& make,
                                              int root = 0);
  /// Returns the bytes of every rank, on every rank.
  std::vector<std::vector<std::byte>> allgather_bytes(std::string_view name,
                                                      std::span<const std::byte> bytes);

  /// Looks a name up once, for loops over many small tensors. Calls take the handle instead of the
  /// name. Their input must have this dtype and shape. If a call does not deal with rows (an
  /// allreduce, say), only its dtype and number of elements must match. One handle may be used for
  /// calls of different kinds.
  TensorHandle declare(std::string_view name, Shape shape, DataType dtype);

  /// Returns `bytes` bytes of zeroed memory. If the backend shares memory, the ranks of this host
  /// can access it, and collectives read and write it directly. Throws Error(out_of_memory). Each
  /// rank may allocate on its own, without the other ranks.
  SharedRegion allocate(int64_t bytes);

  /// Returns a communicator of the ranks that pass the same color, ordered by (key, rank). All
  /// ranks must call it. A rank with a negative color gets null.
  std::unique_ptr<Communicator> split(int color, int key = 0);
  /// Called after a rank is lost. Returns a communicator of the surviving ranks, in their old
  /// order. Every survivor must call it. Afterwards this object can only be destroyed.
  std::unique_ptr<Communicator> shrink(Deadline deadline = Deadline::after(30));

  /// Leaves the group in an orderly way, before the destructor runs. Waiting threads, pending
  /// operations and all later calls get Error(closed). Any thread may call it, also while others
  /// use this object; further calls do nothing. Never throws. Each of its waits has a deadline,
  /// Options::close_timeout. `error` is the program's reason for closing: one line, of which the
  /// first 400 bytes are used. The other ranks' errors contain this text, and tutti-run names this
  /// rank as the one that failed first. If the destructor runs while an exception unwinds the
  /// stack, it gives a reason of its own.
  void close(std::string_view error = {}) noexcept;

  /// Returns the counters of this Communicator. They include every Work that any thread has seen
  /// done, and the blocking calls of the calling thread. Any thread may call it.
  Statistics statistics() const;
  /// Starts recording a timeline. The file is complete after stop_timeline().
  void start_timeline(const std::string& file);
  void stop_timeline();  // see start_timeline
  /// Adds a span of the program's own to the timeline. Does nothing if the timeline is off.
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
  const int exceptions_;  // number of exceptions in flight in the thread that made this object
};

}  // namespace tutti
