// The operations of a communicator. Each call is checked for errors that one rank alone can see.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "tutti/core/calls/arguments.h"
#include "tutti/core/calls/communicator_state.h"
#include "tutti/core/communicator.h"

namespace tutti {

namespace {

using RowList = std::span<const int64_t>;

const TensorView kNone;

void check_scatterable(std::string_view name, const TensorView& input) {
  if (input.shape().rank() == 0)
    throw refused(name, "a scalar has no rows to scatter; give it a first dimension");
}

}  // namespace

// Starts the operation by name or by handle. If it has a handle, the tensor gets the declared
// shape.
Work Communicator::start(const OperationName& name, OperationCall call, bool ring) {
  if (name.handle_ == nullptr) return state_->start(name.name_, nullptr, call, ring);
  auto* declared = name.handle_->declared_.get();
  if (call.kind == CollectiveKind::barrier)
    return state_->start(declared->name, declared, call, ring);
  const auto& described = call.described();
  const auto& shape = declared->shape;
  if (!call.tells_output &&
      (described.dtype() != declared->dtype || described.count() != shape.count() ||
       (has_rows(call.kind) && described.shape() != shape)))
    throw refused(declared->name,
                  fmt::format("declared as {}{}, but {}{} came", to_string(declared->dtype),
                              shape.to_string(), to_string(described.dtype()),
                              described.shape().to_string()));
  if (call.tells_output || described.shape() == shape)
    return state_->start(declared->name, declared, call, ring);
  const auto input = call.input->reshaped(shape);
  const auto output = call.output->count() == shape.count() ? call.output->reshaped(shape) : kNone;
  call.input = &input;
  call.output = &output;
  return state_->start(declared->name, declared, call, ring);
}

// Returns the text of a name, or the name of a handle.
std::string_view Communicator::text_of(const OperationName& name) const {
  if (name.handle_ == nullptr) return name.name_;
  const auto* declared = name.handle_->declared_.get();
  if (declared == nullptr || !declared->is_of(state_))
    throw Error(ErrorCode::invalid_argument,
                "this TensorHandle was not made by declare() of this Communicator");
  return declared->name;
}

// --- reductions ---------------------------------------------------------------------------------

Work Communicator::allreduce(OperationName name, TensorView tensor, ReduceOp op) {
  return allreduce(name, tensor, ReduceOptions{.op = op});
}

Work Communicator::allreduce(OperationName name, TensorView tensor, const ReduceOptions& options) {
  text_of(name);
  return start(name, {CollectiveKind::allreduce, &tensor, &tensor, &options});
}

Work Communicator::allreduce(OperationName name, ConstTensorView constant, TensorView output,
                             const ReduceOptions& options) {
  const TensorView& input = constant.view();
  check_alike(text_of(name), input, output);
  check_apart(text_of(name), input, output, 0);
  return start(name, {CollectiveKind::allreduce, &input, &output, &options});
}

Work Communicator::grouped_allreduce(std::string_view group, std::span<const NamedTensor> tensors,
                                     const ReduceOptions& options) {
  std::vector<CommunicatorState::Member> members;
  for (const auto& [name, tensor] : tensors)
    members.push_back({name, {CollectiveKind::allreduce, &tensor, &tensor, &options}});
  return state_->start_group(group, members);
}

Work Communicator::grouped_allreduce(std::string_view group, std::span<const NamedTransfer> tensors,
                                     const ReduceOptions& options) {
  std::vector<CommunicatorState::Member> members;
  for (const auto& [name, input, output] : tensors) {
    check_alike(name, input.view(), output);
    check_apart(name, input.view(), output, 0);
    members.push_back({name, {CollectiveKind::allreduce, &input.view(), &output, &options}});
  }
  return state_->start_group(group, members);
}

Work Communicator::reduce(OperationName name, ConstTensorView constant, TensorView output, int root,
                          ReduceOp op) {
  const auto text = text_of(name);
  const TensorView& input = constant.view();
  state_->check_root(text, root);
  const bool is_root = rank() == root;
  if (is_root) {
    check_alike(text, input, output);
    check_apart(text, input, output, 0);
  }
  const ReduceOptions options{.op = op};
  return start(name, {.kind = CollectiveKind::reduce,
                      .input = &input,
                      .output = is_root ? &output : &kNone,
                      .options = &options,
                      .root = root});
}

namespace {

OperationCall reduce_scatter_call(const CommunicatorState& state, std::string_view name,
                                  const TensorView& input, const TensorView* output,
                                  const ReduceOptions& options, RowList rows) {
  check_scatterable(name, input);
  check_rows(name, rows, state.options.size);
  OperationCall call{.kind = CollectiveKind::reduce_scatter,
                     .input = &input,
                     .output = output != nullptr ? output : &kNone,
                     .options = &options,
                     .rows = rows};
  call.library_output = output == nullptr;
  if (output == nullptr) return call;
  check_row_type(name, input, *output);
  check_scattered(name, input, *output, bytes_before(state.options, input, rows));
  call.output_rows = rows_of(output->shape());
  return call;
}

}  // namespace

Work Communicator::reduce_scatter(OperationName name, ConstTensorView input,
                                  const ReduceOptions& options, std::span<const int64_t> rows) {
  return start(name,
               reduce_scatter_call(*state_, text_of(name), input.view(), nullptr, options, rows));
}

Work Communicator::reduce_scatter(OperationName name, ConstTensorView input, TensorView output,
                                  const ReduceOptions& options, std::span<const int64_t> rows) {
  return start(name,
               reduce_scatter_call(*state_, text_of(name), input.view(), &output, options, rows));
}

Work Communicator::grouped_reduce_scatter(std::string_view group,
                                          std::span<const NamedTensor> tensors,
                                          const ReduceOptions& options) {
  std::vector<CommunicatorState::Member> members;
  for (const auto& [name, tensor] : tensors)
    members.push_back({name, reduce_scatter_call(*state_, name, tensor, nullptr, options, {})});
  return state_->start_group(group, members);
}

Work Communicator::grouped_reduce_scatter(std::string_view group,
                                          std::span<const NamedTransfer> tensors,
                                          const ReduceOptions& options) {
  std::vector<CommunicatorState::Member> members;
  for (const auto& [name, input, output] : tensors)
    members.push_back(
        {name, reduce_scatter_call(*state_, name, input.view(), &output, options, {})});
  return state_->start_group(group, members);
}

// --- moving data --------------------------------------------------------------------------------

namespace {

// Describes a call of a kind that puts the ranks' rows one after another. If `output` is null, the
// library allocates the output.
OperationCall joined_call(CollectiveKind kind, const TensorView& input, const TensorView* output,
                          int root = 0) {
  OperationCall call{
      .kind = kind, .input = &input, .output = output != nullptr ? output : &kNone, .root = root};
  call.library_output = output == nullptr;
  if (output != nullptr) call.output_rows = rows_of(output->shape());
  return call;
}

OperationCall allgather_call(std::string_view name, const TensorView& input,
                             const TensorView& output) {
  check_row_type(name, input, output);
  check_part(name, input, output);
  return joined_call(CollectiveKind::allgather, input, &output);
}

}  // namespace

Work Communicator::allgather(OperationName name, ConstTensorView input) {
  text_of(name);
  return start(name, joined_call(CollectiveKind::allgather, input.view(), nullptr));
}

Work Communicator::allgather(OperationName name, ConstTensorView input, TensorView output) {
  return start(name, allgather_call(text_of(name), input.view(), output));
}

Work Communicator::grouped_allgather(std::string_view group, std::span<const NamedTensor> tensors) {
  std::vector<CommunicatorState::Member> members;
  for (const auto& [name, tensor] : tensors)
    members.push_back({name, joined_call(CollectiveKind::allgather, tensor, nullptr)});
  return state_->start_group(group, members);
}

Work Communicator::grouped_allgather(std::string_view group,
                                     std::span<const NamedTransfer> tensors) {
  std::vector<CommunicatorState::Member> members;
  for (const auto& [name, input, output] : tensors)
    members.push_back({name, allgather_call(name, input.view(), output)});
  return state_->start_group(group, members);
}

Work Communicator::broadcast(OperationName name, TensorView tensor, int root) {
  state_->check_root(text_of(name), root);
  return start(
      name, {.kind = CollectiveKind::broadcast, .input = &tensor, .output = &tensor, .root = root});
}

Work Communicator::broadcast(OperationName name, ConstTensorView constant, TensorView output,
                             int root) {
  const auto text = text_of(name);
  state_->check_root(text, root);
  const bool is_root = rank() == root;
  const TensorView& input = is_root ? constant.view() : output;
  check_alike(text, input, output);
  check_apart(text, input, output, 0);
  return start(
      name, {.kind = CollectiveKind::broadcast, .input = &input, .output = &output, .root = root});
}

Work Communicator::gather(OperationName name, ConstTensorView input, int root) {
  state_->check_root(text_of(name), root);
  return start(name, joined_call(CollectiveKind::gather, input.view(), nullptr, root));
}

Work Communicator::gather(OperationName name, ConstTensorView constant, TensorView output,
                          int root) {
  const auto text = text_of(name);
  const TensorView& input = constant.view();
  state_->check_root(text, root);
  if (rank() != root)
    return start(name,
                 {.kind = CollectiveKind::gather, .input = &input, .output = &kNone, .root = root});
  check_row_type(text, input, output);
  check_gathered(text, input, output);
  return start(name, joined_call(CollectiveKind::gather, input, &output, root));
}

namespace {

// Describes a scatter. If `output` is null, the library allocates the output.
OperationCall scatter_call(const CommunicatorState& state, std::string_view name,
                           const TensorView& input, const TensorView* output, int root,
                           RowList rows) {
  state.check_root(name, root);
  const bool is_root = state.options.rank == root;
  if (is_root) {
    check_scatterable(name, input);
    if (output != nullptr) check_row_type(name, input, *output);
    check_rows(name, rows, state.options.size);
    if (output != nullptr)
      check_apart(name, input, *output, bytes_before(state.options, input, rows));
  }
  OperationCall call{.kind = CollectiveKind::scatter,
                     .input = is_root ? &input : &kNone,
                     .output = output != nullptr ? output : &kNone,
                     .root = root};
  if (is_root) call.rows = rows;
  if (output != nullptr) call.output_rows = rows_of(output->shape());
  call.library_output = output == nullptr;
  call.tells_output = !is_root;
  return call;
}

}  // namespace

Work Communicator::scatter(OperationName name, ConstTensorView input, TensorView output, int root,
                           std::span<const int64_t> rows) {
  return start(name, scatter_call(*state_, text_of(name), input.view(), &output, root, rows));
}

Work Communicator::scatter(OperationName name, ConstTensorView input, int root,
                           std::span<const int64_t> rows) {
  return start(name, scatter_call(*state_, text_of(name), input.view(), nullptr, root, rows));
}

namespace {

// Describes an alltoall. If `splits` is empty, `rows` is filled with equal splits.
OperationCall alltoall_call(const CommunicatorState& state, std::string_view name,
                            const TensorView& input, RowList splits, std::vector<int64_t>& rows) {
  const int rank = state.options.rank, size = state.options.size;
  const int64_t all = rows_of(input.shape());
  if (input.shape().rank() == 0)
    throw refused(name, "a scalar has no rows to send; give it a first dimension");
  check_rows(name, splits, size);
  if (splits.empty()) {
    if (all % size != 0)
      throw refused(name, fmt::format("{} rows cannot be split equally among {} ranks; give splits",
                                      all, size));
    rows.assign(static_cast<size_t>(size), all / size);
    splits = rows;
  }
  if (std::accumulate(splits.begin(), splits.end(), int64_t{0}) != all)
    throw refused(name, fmt::format("splits [{}] do not add up to the {} rows of rank {}",
                                    fmt::join(splits, ","), all, rank));
  OperationCall call{
      .kind = CollectiveKind::alltoall, .input = &input, .output = &kNone, .rows = splits};
  call.library_output = true;
  return call;
}

}  // namespace

Work Communicator::alltoall(OperationName name, ConstTensorView input,
                            std::span<const int64_t> splits) {
  std::vector<int64_t> rows;
  return start(name, alltoall_call(*state_, text_of(name), input.view(), splits, rows));
}

Work Communicator::alltoall(OperationName name, ConstTensorView constant, TensorView output,
                            std::span<const int64_t> splits) {
  std::vector<int64_t> rows;
  const auto text = text_of(name);
  const TensorView& input = constant.view();
  auto call = alltoall_call(*state_, text, input, splits, rows);
  check_row_type(text, input, output);
  check_exchanged(text, input, output);
  call.output = &output;
  call.output_rows = rows_of(output.shape());
  call.library_output = false;
  return start(name, call);
}

Work Communicator::send(OperationName name, ConstTensorView tensor, int to) {
  return start_pair(name, CollectiveKind::send, tensor.view(), to);
}

Work Communicator::recv(OperationName name, TensorView tensor, int from) {
  return start_pair(name, CollectiveKind::recv, tensor, from);
}

void Communicator::check_pair(std::string_view name, int peer) const {
  state_->check_root(name, peer);
  if (peer == rank()) throw refused(name, fmt::format("rank {} cannot send to itself", peer));
}

Work Communicator::start_pair(const OperationName& name, CollectiveKind kind,
                              const TensorView& tensor, int peer, bool ring) {
  check_pair(text_of(name), peer);
  return start(name, {.kind = kind, .input = &tensor, .output = &tensor, .root = peer}, ring);
}

Work Communicator::recv_any(OperationName name, TensorView tensor) {
  const auto text = text_of(name);
  if (size() == 1) throw refused(text, "there is no other rank that could send to rank 0");
  return start(
      name,
      {.kind = CollectiveKind::recv, .input = &tensor, .output = &tensor, .root = kFromAnyRank});
}

Work Communicator::barrier(OperationName name) {
  text_of(name);
  return start(name, {.kind = CollectiveKind::barrier, .input = &kNone, .output = &kNone});
}

Work Communicator::join() {
  auto entry = std::make_unique<Entry>();
  entry->request.name = "join\n";
  entry->request.join = true;
  auto work = std::make_shared<WorkState>(state_->engine, "join", 1);
  entry->work = work;
  state_->engine->submit_join(std::move(entry));
  return Work(std::move(work));
}

Work Communicator::sparse_allreduce(std::string_view name, SparseTensor tensor, ReduceOp op) {
  if (op != ReduceOp::sum && op != ReduceOp::average)
    throw refused(name,
                  fmt::format("sparse tensors are summed or averaged, not {}", to_string(op)));
  if (tensor.indices.dtype() != DataType::i64 || tensor.indices.shape().rank() != 1 ||
      tensor.values.shape().rank() < 1 || tensor.values.shape()[0] != tensor.indices.count())
    throw refused(
        name,
        fmt::format(
            "indices {}{} and values {}{} are not a sparse tensor: expected i64[k] and [k, ...]",
            to_string(tensor.indices.dtype()), tensor.indices.shape().to_string(),
            to_string(tensor.values.dtype()), tensor.values.shape().to_string()));
  const std::string indices = fmt::format("{}.indices", name),
                    values = fmt::format("{}.values", name);
  auto of_indices = joined_call(CollectiveKind::allgather, tensor.indices, nullptr);
  auto of_values = joined_call(CollectiveKind::allgather, tensor.values, nullptr);
  // The gathered values are scaled by the engine, before the Work is done.
  if (op == ReduceOp::average) of_values.divide_output_by = size();
  const CommunicatorState::Member members[] = {{indices, of_indices}, {values, of_values}};
  return state_->start_group(name, members);
}

}  // namespace tutti
