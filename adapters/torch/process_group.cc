#include "tutti/adapters/torch/process_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "tutti/adapters/torch/group_tensors.h"
#include "tutti/adapters/torch/group_work.h"
#include "tutti/adapters/torch/torch_store.h"
#include "tutti/core/settings/store_options.h"

namespace tutti::torch {

namespace {

using ::c10d::OpType;

// c10d's operator in Tutti's words.
ReduceOptions reduction(const GroupCall& call, const ::c10d::ReduceOp& op) {
  const ::c10d::ReduceOp::RedOpType type = op;
  switch (type) {
    case ::c10d::ReduceOp::SUM:
      return {.op = ReduceOp::sum};
    case ::c10d::ReduceOp::AVG:
      return {.op = ReduceOp::average};
    case ::c10d::ReduceOp::MIN:
      return {.op = ReduceOp::min};
    case ::c10d::ReduceOp::MAX:
      return {.op = ReduceOp::max};
    case ::c10d::ReduceOp::PRODUCT:
      return {.op = ReduceOp::product};
    case ::c10d::ReduceOp::BAND:
      return {.op = ReduceOp::band};
    case ::c10d::ReduceOp::BOR:
      return {.op = ReduceOp::bor};
    case ::c10d::ReduceOp::BXOR:
      return {.op = ReduceOp::bxor};
    case ::c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor =
          dynamic_cast<const ::c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      // 0 where the factor is a tensor.
      if (factor != nullptr && factor->double_factor != 0)
        return {.op = ReduceOp::sum, .prescale = factor->double_factor};
      throw call.refused("PREMUL_SUM takes a number other than 0 for its factor");
    }
    default:
      throw call.refused(
          fmt::format("ReduceOp number {} is not served; allgather, and reduce the result",
                      static_cast<int>(type)));
  }
}

// How many elements of the tensor each rank has: rows of `splits`, or equal parts of the first
// dimension.
std::vector<int64_t> elements_for_each(const GroupCall& call, const char* what,
                                       const ::at::Tensor& tensor,
                                       const std::vector<int64_t>& splits, int ranks) {
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  const int64_t row = rows > 0 ? tensor.numel() / rows : 0;
  std::vector<int64_t> counts(static_cast<size_t>(ranks), rows / ranks * row);
  if (splits.empty()) {
    if (rows % ranks != 0)
      throw call.refused(
          fmt::format("its {} has {} rows, which {} ranks cannot share equally; give splits", what,
                      rows, ranks));
    return counts;
  }
  if (splits.size() != counts.size() ||
      std::accumulate(splits.begin(), splits.end(), int64_t{0}) != rows)
    throw call.refused(fmt::format("the {} splits [{}] do not deal {} rows to {} ranks", what,
                                   fmt::join(splits, ","), rows, ranks));
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = splits[i] * row;
  return counts;
}

// Several calls as one.
CallUnderWay together(std::vector<CallUnderWay> calls) {
  CallUnderWay all;
  std::vector<std::function<void()>> ends;
  for (auto& call : calls) {
    all.works.insert(all.works.end(), call.works.begin(), call.works.end());
    all.outputs.insert(all.outputs.end(), call.outputs.begin(), call.outputs.end());
    all.inputs.insert(all.inputs.end(), call.inputs.begin(), call.inputs.end());
    if (call.finish) ends.push_back(std::move(call.finish));
  }
  all.finish = [ends = std::move(ends)] {
    for (const auto& end : ends) end();
  };
  return all;
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Communicator> comm, std::string name,
                           std::chrono::milliseconds timeout)
    : C10dBase(comm->rank(), comm->size()),
      comm_(std::move(comm)),
      name_(std::move(name)),
      timeout_(timeout) {}

ProcessGroup::~ProcessGroup() = default;

::c10::intrusive_ptr<ProcessGroup> ProcessGroup::create(const Store& store, int rank, int size,
                                                        const std::string& name,
                                                        std::chrono::milliseconds timeout) {
  // Each rank counts for itself: one that failed to join and tries again moves no other's number.
  const auto count = store->add(fmt::format("tutti/{}/joined/{}", name, rank), 1);
  auto place =
      ::c10::make_intrusive<::c10d::PrefixStore>(fmt::format("tutti/{}/{}", name, count), store);
  auto options = complete_options(options_in_store(rank, size, make_torch_store(std::move(place))));
  options.replay = false;  // no name comes again
  const auto seconds = std::chrono::duration<double>(timeout).count();
  options.connect_timeout = std::min(options.connect_timeout, seconds);
  // Who waits for a Future gives it no time.
  if (options.operation_timeout == 0) options.operation_timeout = seconds;
  return ::c10::make_intrusive<ProcessGroup>(Communicator::create(std::move(options)), name,
                                             timeout);
}

std::string ProcessGroup::next_name() {
  const std::lock_guard lock(mutex_);
  return fmt::format("group {}/{}", name_, calls_++);
}

uint64_t ProcessGroup::getSequenceNumberForGroup() {
  const std::lock_guard lock(mutex_);
  return calls_;
}

std::string ProcessGroup::message(int from, int to, int tag) {
  const std::lock_guard lock(mutex_);
  return fmt::format("group {}/{}-{}/tag {}/{}", name_, from, to, tag,
                     messages_[{from, to, tag}]++);
}

int ProcessGroup::peer(const GroupCall& call, int rank) const {
  if (rank < 0 || rank >= size_ || rank == rank_)
    throw call.refused(fmt::format("rank {} is no other rank of a group of {}", rank, size_));
  return rank;
}

int ProcessGroup::root(const GroupCall& call, int64_t rank) const {
  if (rank < 0 || rank >= size_)
    throw call.refused(fmt::format("its root {} is no rank of a group of {}", rank, size_));
  return static_cast<int>(rank);
}

ProcessGroup::StartedWork ProcessGroup::started(OpType type, CallUnderWay call) const {
  return ::c10::make_intrusive<GroupWork>(rank_, type, std::move(call), timeout_);
}

template <class Start>
ProcessGroup::StartedWork ProcessGroup::started_together(OpType type, size_t count,
                                                         const Start& start) const {
  std::vector<CallUnderWay> calls;
  try {
    for (size_t i = 0; i < count; ++i) calls.push_back(start(i));
  } catch (...) {
    // Those before it go on, in memory that their GroupWork keeps until they are over.
    started(type, together(std::move(calls)));
    throw;
  }
  return started(type, together(std::move(calls)));
}

// --- reductions ---

ProcessGroup::StartedWork ProcessGroup::allreduce(Tensors& tensors,
                                                  const ::c10d::AllreduceOptions& options) {
  const GroupCall call{"allreduce", rank_};
  auto [dense, back] = in_place(call, single(call, tensors));
  const auto reduce = reduction(call, options.reduceOp);
  const auto view = memory(call, dense);
  auto work = comm_->allreduce(next_name(), view, reduce);
  return started(OpType::ALLREDUCE, {{work}, tensors, {dense}, back});
}

ProcessGroup::StartedWork ProcessGroup::allreduce_coalesced(
    Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options) {
  const GroupCall call{"allreduce_coalesced", rank_};
  const auto reduce = reduction(call, options.reduceOp);
  if (tensors.empty()) return started(OpType::ALLREDUCE_COALESCED, {});
  CallUnderWay under_way;
  std::vector<std::function<void()>> backs;
  std::vector<NamedTensor> members;
  for (const auto& tensor : tensors) {
    auto [dense, back] = in_place(call, tensor);
    members.push_back({fmt::format("{}", members.size()), memory(call, dense)});
    under_way.inputs.push_back(dense);
    if (back) backs.push_back(back);
  }
  under_way.works = {comm_->grouped_allreduce(next_name(), members, reduce)};
  under_way.outputs = tensors;
  under_way.finish = [backs = std::move(backs)] {
    for (const auto& back : backs) back();
  };
  return started(OpType::ALLREDUCE_COALESCED, std::move(under_way));
}

ProcessGroup::StartedWork ProcessGroup::reduce(Tensors& tensors,
                                               const ::c10d::ReduceOptions& options) {
  const GroupCall call{"reduce", rank_};
  auto [dense, back] = in_place(call, single(call, tensors));
  const auto reduce = reduction(call, options.reduceOp);
  if (reduce.prescale != 1) throw call.refused("PREMUL_SUM is served by allreduce only");
  const int to = root(call, options.rootRank);
  const auto view = memory(call, dense);
  auto work = comm_->reduce(next_name(), view, view, to, reduce.op);
  if (to != rank_) back = nullptr;
  return started(OpType::REDUCE, {{work}, tensors, {dense}, back});
}

CallUnderWay ProcessGroup::scattered(const GroupCall& call, ::at::Tensor& output,
                                     const ::at::Tensor& flat, const std::vector<int64_t>& counts,
                                     const ::c10d::ReduceOp& op) {
  auto [dense, back] = in_place(call, output);
  const int64_t own = counts[static_cast<size_t>(rank_)];
  check_alike(call, flat.narrow(0, 0, own), dense, dense.numel());
  const auto reduce = reduction(call, op);
  const auto from = memory(call, flat), to = memory(call, dense);
  auto work = comm_->reduce_scatter(next_name(), from, to, reduce, counts);
  return {{work}, {output}, {flat, dense}, back};
}

ProcessGroup::StartedWork ProcessGroup::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const ::c10d::ReduceScatterOptions& options) {
  const GroupCall call{"reduce_scatter", rank_};
  auto output = single(call, outputs);
  const Parts parts(call, single(call, inputs), size_, Parts::Use::input);
  return started(OpType::REDUCE_SCATTER,
                 scattered(call, output, parts.flat(), parts.counts(), options.reduceOp));
}

ProcessGroup::StartedWork ProcessGroup::_reduce_scatter_base(
    ::at::Tensor& output, ::at::Tensor& input, const ::c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ProcessGroup::StartedWork ProcessGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& options) {
  const GroupCall call{"_reduce_scatter_base", rank_};
  if (outputs.size() != inputs.size())
    throw call.refused(fmt::format("got {} inputs for {} outputs", inputs.size(), outputs.size()));
  return started_together(OpType::_REDUCE_SCATTER_BASE, outputs.size(), [&](size_t i) {
    const auto flat = as_input(call, inputs[i]).view({-1});
    check_alike(call, flat, outputs[i], outputs[i].numel() * size_);
    const std::vector<int64_t> counts(static_cast<size_t>(size_), outputs[i].numel());
    return scattered(call, outputs[i], flat, counts, options.reduceOp);
  });
}

// --- moves ---

ProcessGroup::StartedWork ProcessGroup::broadcast(Tensors& tensors,
                                                  const ::c10d::BroadcastOptions& options) {
  const GroupCall call{"broadcast", rank_};
  auto [dense, back] = in_place(call, single(call, tensors));
  const int from = root(call, options.rootRank);
  auto work = comm_->broadcast(next_name(), raw_memory(dense), from);
  return started(OpType::BROADCAST, {{work}, tensors, {dense}, back});
}

CallUnderWay ProcessGroup::gathered(const GroupCall& call, ::at::Tensor& output,
                                    const ::at::Tensor& input) {
  const auto own = as_input(call, input);
  auto [dense, back] = in_place(call, output);
  check_alike(call, own, dense, dense.numel() / size_);
  auto work = comm_->allgather(next_name(), raw_memory(own), raw_memory(dense));
  return {{work}, {output}, {own, dense}, back};
}

ProcessGroup::StartedWork ProcessGroup::allgather(TensorLists& outputs, Tensors& inputs,
                                                  const ::c10d::AllgatherOptions&) {
  const GroupCall call{"allgather", rank_};
  const auto& list = single(call, outputs);
  const Parts parts(call, list, size_, Parts::Use::output);
  const auto own = as_input(call, single(call, inputs));
  check_alike(call, own, parts.flat(), parts.counts()[static_cast<size_t>(rank_)]);
  auto work = comm_->allgather(next_name(), raw_memory(own), raw_memory(parts.flat()));
  return started(OpType::ALLGATHER, {{work}, list, {own}, [parts] { parts.hand_out(); }});
}

ProcessGroup::StartedWork ProcessGroup::_allgather_base(::at::Tensor& output, ::at::Tensor& input,
                                                        const ::c10d::AllgatherOptions&) {
  return started(OpType::_ALLGATHER_BASE, gathered({"_allgather_base", rank_}, output, input));
}

ProcessGroup::StartedWork ProcessGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::AllgatherOptions&) {
  const GroupCall call{"allgather_into_tensor_coalesced", rank_};
  if (outputs.size() != inputs.size())
    throw call.refused(fmt::format("got {} inputs for {} outputs", inputs.size(), outputs.size()));
  return started_together(OpType::ALLGATHER_COALESCED, outputs.size(),
                          [&](size_t i) { return gathered(call, outputs[i], inputs[i]); });
}

ProcessGroup::StartedWork ProcessGroup::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                            const ::c10d::AllgatherOptions&) {
  const GroupCall call{"allgather_coalesced", rank_};
  if (outputs.size() != static_cast<size_t>(size_))
    throw call.refused(fmt::format("got {} lists of outputs, want one for each of {} ranks",
                                   outputs.size(), size_));
  return started_together(OpType::ALLGATHER_COALESCED, inputs.size(), [&](size_t i) {
    Tensors column;
    for (const auto& row : outputs) {
      if (row.size() != inputs.size())
        throw call.refused(fmt::format("a list of outputs has {} tensors where {} inputs came",
                                       row.size(), inputs.size()));
      column.push_back(row[i]);
    }
    const Parts parts(call, column, size_, Parts::Use::output);
    const auto own = as_input(call, inputs[i]);
    check_alike(call, own, parts.flat(), parts.counts()[static_cast<size_t>(rank_)]);
    auto work = comm_->allgather(next_name(), raw_memory(own), raw_memory(parts.flat()));
    return CallUnderWay{{work}, column, {own}, [parts] { parts.hand_out(); }};
  });
}

ProcessGroup::StartedWork ProcessGroup::gather(TensorLists& outputs, Tensors& inputs,
                                               const ::c10d::GatherOptions& options) {
  const GroupCall call{"gather", rank_};
  const auto own = as_input(call, single(call, inputs));
  const int to = root(call, options.rootRank);
  if (to != rank_)
    return started(OpType::GATHER,
                   {{comm_->gather(next_name(), raw_memory(own), to)}, {}, {own}, {}});
  const auto& list = single(call, outputs);
  const Parts parts(call, list, size_, Parts::Use::output);
  check_alike(call, own, parts.flat(), parts.counts()[static_cast<size_t>(rank_)]);
  auto work = comm_->gather(next_name(), raw_memory(own), raw_memory(parts.flat()), to);
  return started(OpType::GATHER, {{work}, list, {own}, [parts] { parts.hand_out(); }});
}

ProcessGroup::StartedWork ProcessGroup::scatter(Tensors& outputs, TensorLists& inputs,
                                                const ::c10d::ScatterOptions& options) {
  const GroupCall call{"scatter", rank_};
  auto [dense, back] = in_place(call, single(call, outputs));
  const int from = root(call, options.rootRank);
  std::optional<Parts> parts;
  if (from == rank_) {
    parts.emplace(call, single(call, inputs), size_, Parts::Use::input);
    check_alike(call, parts->flat().narrow(0, 0, parts->counts()[static_cast<size_t>(rank_)]),
                dense, dense.numel());
  }
  // Elsewhere nothing is read of it.
  const auto source = raw_memory(parts ? parts->flat() : dense);
  const auto rows = parts ? parts->rows() : std::vector<int64_t>();
  auto work = comm_->scatter(next_name(), source, raw_memory(dense), from, rows);
  Tensors kept{dense};
  if (parts) kept.push_back(parts->flat());
  return started(OpType::SCATTER, {{work}, outputs, kept, back});
}

CallUnderWay ProcessGroup::exchanged(const GroupCall& call, const ::at::Tensor& input,
                                     const std::vector<int64_t>& sent, const ::at::Tensor& output,
                                     const std::vector<int64_t>& expected,
                                     std::function<void()> back) {
  check_alike(call, input.narrow(0, 0, 0), output, 0);
  const int64_t unit = unit_of(input);
  auto rows = sent;
  for (auto& count : rows) count *= unit;
  auto work = comm_->alltoall(next_name(), raw_memory(input), raw_memory(output), rows);
  const auto check = [work, expected, unit, back = std::move(back), rank = rank_,
                      name = std::string(call.name)]() mutable {
    auto came = work.received_counts();
    for (auto& count : came) count /= unit;
    if (came != expected)
      throw Error(
          ErrorCode::mismatch,
          fmt::format("{} on rank {} expected [{}] elements from the ranks and got [{}]; the "
                      "output splits must be the other ranks' input splits",
                      name, rank, fmt::join(expected, ","), fmt::join(came, ",")))
          .with_rank(rank);
    if (back) back();
  };
  return {{work}, {output}, {input, output}, check};
}

ProcessGroup::StartedWork ProcessGroup::alltoall_base(::at::Tensor& output, ::at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const ::c10d::AllToAllOptions&) {
  const GroupCall call{"alltoall_base", rank_};
  const auto own = as_input(call, input);
  auto [dense, back] = in_place(call, output);
  const auto sent = elements_for_each(call, "input", own, input_splits, size_);
  const auto expected = elements_for_each(call, "output", dense, output_splits, size_);
  auto under_way = exchanged(call, own.view({-1}), sent, dense.view({-1}), expected, back);
  under_way.outputs = {output};
  return started(OpType::ALLTOALL_BASE, std::move(under_way));
}

ProcessGroup::StartedWork ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const ::c10d::AllToAllOptions&) {
  const GroupCall call{"alltoall", rank_};
  const Parts given(call, inputs, size_, Parts::Use::input);
  const Parts wanted(call, outputs, size_, Parts::Use::output);
  auto under_way = exchanged(call, given.flat(), given.counts(), wanted.flat(), wanted.counts(),
                             [wanted] { wanted.hand_out(); });
  under_way.outputs = outputs;
  return started(OpType::ALLTOALL, std::move(under_way));
}

ProcessGroup::StartedWork ProcessGroup::send(Tensors& tensors, int to, int tag) {
  const GroupCall call{"send", rank_};
  const auto own = as_input(call, single(call, tensors));
  peer(call, to);
  auto work = comm_->send(message(rank_, to, tag), raw_memory(own), to);
  return started(OpType::SEND, {{work}, tensors, {own}, {}});
}

ProcessGroup::StartedWork ProcessGroup::recv(Tensors& tensors, int from, int tag) {
  const GroupCall call{"recv", rank_};
  auto [dense, back] = in_place(call, single(call, tensors));
  peer(call, from);
  auto work = comm_->recv(message(from, rank_, tag), raw_memory(dense), from);
  return started(OpType::RECV, {{work}, tensors, {dense}, back});
}

ProcessGroup::StartedWork ProcessGroup::barrier(const ::c10d::BarrierOptions&) {
  return started(OpType::BARRIER, {{comm_->barrier(next_name())}, {}, {}, {}});
}

}  // namespace tutti::torch
