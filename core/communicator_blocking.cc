// The blocking calls. If memory is shared, the calling thread alone runs them. Otherwise they are
// matched by name.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <exception>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "tutti/core/calls/arguments.h"
#include "tutti/core/calls/communicator_state.h"
#include "tutti/core/communicator.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

using RowCounts = std::span<const int64_t>;

// Returns true if the call ran directly in shared memory with these two tensors. Returns false if
// the caller must start an operation that is matched by name.
bool run_blocking(CommunicatorState& state, std::string_view name, Collective& collective,
                  const TensorView& input, const TensorView& output) {
  if (state.options.mixed_devices) return false;  // another rank's tensors may be on a device
  for (const auto* view : {&input, &output})
    if (view->device().kind != DeviceKind::cpu) return false;
  collective.input = input.data();
  collective.output = output.data();
  const auto& laid_out = input.count() > 0 ? input : output;
  return state.engine->run_now(name, collective, layout_of(laid_out));
}

struct Pair {
  std::string_view name;
  CollectiveKind kind;
  const TensorView* tensor;
  int peer;
};

// Runs a send, a receive, or both at the same time. Returns false like run_blocking().
bool run_pairs(CommunicatorState& state, std::initializer_list<Pair> pairs) {
  if (state.options.mixed_devices) return false;
  std::array<int64_t, Engine::kMostPairCalls> counts{};
  std::array<Engine::PairCall, Engine::kMostPairCalls> calls;
  size_t made = 0;
  for (const auto& [name, kind, tensor, peer] : pairs) {
    if (tensor->device().kind != DeviceKind::cpu) return false;
    counts[made] = tensor->count();
    auto& collective = calls[made].collective;
    collective.kind = kind;
    collective.dtype = tensor->dtype();
    collective.root = peer;
    collective.send_counts = {&counts[made], 1};
    collective.input = collective.output = tensor->data();
    calls[made].name = name;
    calls[made++].layout = layout_of(*tensor);
  }
  return state.engine->run_pairs_now({calls.data(), made});
}

Collective call_of(CollectiveKind kind, DataType dtype, RowCounts counts, int root = 0,
                   ReduceOp op = ReduceOp::sum) {
  Collective collective;
  collective.kind = kind;
  collective.dtype = dtype;
  collective.op = op;
  collective.root = root;
  collective.send_counts = counts;
  return collective;
}

void check_row_major(std::string_view name, const TensorView& view) {
  if (view.is_row_major()) return;
  throw refused(name, fmt::format("rows are moved of row-major tensors, this one has strides [{}]",
                                  fmt::join(view.strides(), ",")));
}

// Returns the number of elements of each rank. `all` has the rows of all ranks (null if this rank
// does not have them). `own` has this rank's rows.
std::vector<int64_t> dealt(const CommunicatorState& state, std::string_view name,
                           const TensorView* all, const TensorView& own, RowCounts rows) {
  const int rank = state.options.rank, size = state.options.size;
  state.check_tensor(name, own);
  check_row_major(name, own);
  auto counts = checked_rows(name, rows, size);
  const int64_t mine = rows_of(own.shape());
  if (counts.empty()) counts.assign(static_cast<size_t>(size), mine);
  if (counts[static_cast<size_t>(rank)] != mine)
    throw refused(
        name, fmt::format("rank {} gave a tensor of {} rows, but rows [{}] give it {}", rank, mine,
                          fmt::join(rows, ","), counts[static_cast<size_t>(rank)]));
  if (all != nullptr) {
    state.check_tensor(name, *all);
    check_row_major(name, *all);
    check_row_type(name, own, *all);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (rows_of(all->shape()) != total)
      throw refused(
          name, fmt::format("rank {} gave a tensor of {} rows, but the parts of all ranks have {}",
                            rank, rows_of(all->shape()), total));
  }
  for (auto& count : counts) count *= own.shape().row_count();
  return counts;
}

// Returns the byte offset of this rank's part in the tensor with all ranks' parts.
int64_t own_part_at(const CommunicatorState& state, RowCounts counts, DataType dtype) {
  const auto end = counts.begin() + state.options.rank;
  return std::accumulate(counts.begin(), end, int64_t{0}) * size_of(dtype);
}

}  // namespace

void Communicator::allreduce_blocking(std::string_view name, const TensorView& tensor,
                                      ReduceOp op) {
  state_->check_tensor(name, tensor);
  if (!can_reduce(tensor.dtype(), op)) throw op_means_nothing(name, tensor.dtype(), op);
  const int64_t count = tensor.count();
  auto call = call_of(CollectiveKind::allreduce, tensor.dtype(), {&count, 1}, 0, op);
  if (run_blocking(*state_, name, call, tensor, tensor)) return;
  const ReduceOptions options{.op = op};
  Work(start(name, {CollectiveKind::allreduce, &tensor, &tensor, &options}, false)).wait();
}

void Communicator::allreduce_blocking(std::string_view name, const ConstTensorView& constant,
                                      const TensorView& output, ReduceOp op) {
  const TensorView& input = constant.view();
  state_->check_tensor(name, input);
  state_->check_tensor(name, output);
  check_alike(name, input, output);
  check_apart(name, input, output, 0);
  if (!can_reduce(input.dtype(), op)) throw op_means_nothing(name, input.dtype(), op);
  const int64_t count = input.count();
  auto call = call_of(CollectiveKind::allreduce, input.dtype(), {&count, 1}, 0, op);
  if (run_blocking(*state_, name, call, input, output)) return;
  const ReduceOptions options{.op = op};
  Work(start(name, {CollectiveKind::allreduce, &input, &output, &options}, false)).wait();
}

void Communicator::broadcast_blocking(std::string_view name, const TensorView& tensor, int root) {
  state_->check_root(name, root);
  state_->check_tensor(name, tensor);
  const int64_t count = tensor.count();
  auto call = call_of(CollectiveKind::broadcast, tensor.dtype(), {&count, 1}, root);
  if (run_blocking(*state_, name, call, tensor, tensor)) return;
  Work(start(name,
             {.kind = CollectiveKind::broadcast, .input = &tensor, .output = &tensor, .root = root},
             false))
      .wait();
}

void Communicator::reduce_blocking(std::string_view name, const ConstTensorView& constant,
                                   const TensorView& output, int root, ReduceOp op) {
  const TensorView& input = constant.view();
  state_->check_root(name, root);
  state_->check_tensor(name, input);
  if (!can_reduce(input.dtype(), op)) throw op_means_nothing(name, input.dtype(), op);
  const bool is_root = rank() == root;
  if (is_root) {
    state_->check_tensor(name, output);
    check_alike(name, input, output);
    check_apart(name, input, output, 0);
  }
  const int64_t count = input.count();
  auto call = call_of(CollectiveKind::reduce, input.dtype(), {&count, 1}, root, op);
  if (run_blocking(*state_, name, call, input, is_root ? output : TensorView())) return;
  reduce(name, input, output, root, op).wait();
}

void Communicator::allgather_blocking(std::string_view name, const ConstTensorView& constant,
                                      const TensorView& output, std::span<const int64_t> rows) {
  const TensorView& input = constant.view();
  const auto counts = dealt(*state_, name, &output, input, rows);
  check_apart(name, input, output, -own_part_at(*state_, counts, input.dtype()));
  auto call = call_of(CollectiveKind::allgather, input.dtype(), counts);
  if (run_blocking(*state_, name, call, input, output)) return;
  allgather(name, input, output).wait();
}

void Communicator::gather_blocking(std::string_view name, const ConstTensorView& constant,
                                   const TensorView& output, int root,
                                   std::span<const int64_t> rows) {
  const TensorView& input = constant.view();
  state_->check_root(name, root);
  const bool is_root = rank() == root;
  const auto counts = dealt(*state_, name, is_root ? &output : nullptr, input, rows);
  if (is_root) check_apart(name, input, output, -own_part_at(*state_, counts, input.dtype()));
  auto call = call_of(CollectiveKind::gather, input.dtype(), counts, root);
  if (run_blocking(*state_, name, call, input, is_root ? output : TensorView())) return;
  gather(name, input, output, root).wait();
}

void Communicator::scatter_blocking(std::string_view name, const ConstTensorView& constant,
                                    const TensorView& output, int root,
                                    std::span<const int64_t> rows) {
  const TensorView& input = constant.view();
  state_->check_root(name, root);
  const bool is_root = rank() == root;
  const auto counts = dealt(*state_, name, is_root ? &input : nullptr, output, rows);
  if (is_root) check_apart(name, input, output, own_part_at(*state_, counts, output.dtype()));
  auto call = call_of(CollectiveKind::scatter, output.dtype(), counts, root);
  if (run_blocking(*state_, name, call, is_root ? input : TensorView(), output)) return;
  scatter(name, input, output, root, rows).wait();
}

void Communicator::reduce_scatter_blocking(std::string_view name, const ConstTensorView& constant,
                                           const TensorView& output, ReduceOp op,
                                           std::span<const int64_t> rows) {
  const TensorView& input = constant.view();
  const auto counts = dealt(*state_, name, &input, output, rows);
  if (!can_reduce(input.dtype(), op)) throw op_means_nothing(name, input.dtype(), op);
  check_scattered(name, input, output, own_part_at(*state_, counts, input.dtype()));
  auto call = call_of(CollectiveKind::reduce_scatter, input.dtype(), counts, 0, op);
  if (run_blocking(*state_, name, call, input, output)) return;
  reduce_scatter(name, input, output, ReduceOptions{.op = op}, rows).wait();
}

void Communicator::alltoall_blocking(std::string_view name, const ConstTensorView& constant,
                                     const TensorView& output) {
  const TensorView& input = constant.view();
  state_->check_tensor(name, input);
  state_->check_tensor(name, output);
  check_row_major(name, input);
  check_alike(name, input, output);
  const int64_t all = rows_of(input.shape());
  if (input.shape().rank() == 0 || all % size() != 0)
    throw refused(
        name,
        fmt::format("{} rows cannot be split equally among {} ranks; use alltoall() with splits",
                    all, size()));
  check_exchanged(name, input, output);
  const std::vector<int64_t> counts(static_cast<size_t>(size()), input.count() / size());
  auto call = call_of(CollectiveKind::alltoall, input.dtype(), counts);
  call.recv_counts = counts;
  call.longest = counts[0];
  if (run_blocking(*state_, name, call, input, output)) return;
  alltoall(name, input, output, {}).wait();
}

void Communicator::barrier_blocking() {
  constexpr std::string_view kName = "blocking barrier";
  auto call = call_of(CollectiveKind::barrier, DataType::f32, {});
  if (run_blocking(*state_, kName, call, TensorView(), TensorView())) return;
  const TensorView none;
  Work(start(kName, {.kind = CollectiveKind::barrier, .input = &none, .output = &none}, false))
      .wait();
}

void Communicator::send_blocking(std::string_view name, const ConstTensorView& tensor, int to) {
  check_pair(name, to);
  state_->check_tensor(name, tensor.view());
  const auto& sent = tensor.view();
  if (run_pairs(*state_, {{name, CollectiveKind::send, &sent, to}})) return;
  start_pair(name, CollectiveKind::send, sent, to, false).wait();
}

void Communicator::recv_blocking(std::string_view name, const TensorView& tensor, int from) {
  check_pair(name, from);
  state_->check_tensor(name, tensor);
  if (run_pairs(*state_, {{name, CollectiveKind::recv, &tensor, from}})) return;
  start_pair(name, CollectiveKind::recv, tensor, from, false).wait();
}

void Communicator::sendrecv_blocking(std::string_view send_name, const ConstTensorView& input,
                                     int to, std::string_view recv_name, const TensorView& output,
                                     int from) {
  const TensorView& sent = input.view();
  check_pair(send_name, to);
  check_pair(recv_name, from);
  if (send_name == recv_name)
    throw refused(
        send_name,
        "what is sent and what is received have the same name; give each its own, on which its "
        "sender and its receiver agree, for example one with the sender's rank");
  state_->check_tensor(send_name, sent);
  state_->check_tensor(recv_name, output);
  check_disjoint(send_name, sent, output);
  if (run_pairs(*state_, {{recv_name, CollectiveKind::recv, &output, from},
                          {send_name, CollectiveKind::send, &sent, to}}))
    return;
  const CommunicatorState::Member members[] = {
      {send_name, {.kind = CollectiveKind::send, .input = &sent, .output = &sent, .root = to}},
      {recv_name,
       {.kind = CollectiveKind::recv, .input = &output, .output = &output, .root = from}}};
  std::exception_ptr first;
  for (const auto& work : state_->start_together(members, false)) {
    try {
      Work(work).wait();
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace tutti
