#include "tutti/core/communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tutti/base/text.h"
#include "tutti/core/life/arguments.h"
#include "tutti/core/life/communicator_state.h"
#include "tutti/core/life/membership.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

std::unique_ptr<Entry> with_library_output(std::unique_ptr<Entry> entry) {
  entry->library_output = true;
  return entry;
}

// The caller's memory instead of one of the library's; its rows are looked at where all are known.
void give_output(const CommunicatorState& state, Entry& entry, const TensorView& output) {
  const auto& name = entry.request.name;
  state.check_tensor(name, output);
  if (!output.is_row_major())
    throw refused(name, fmt::format("an output of rows is row-major, this one has strides [{}]",
                                    fmt::join(output.strides(), ",")));
  for (const TensorView* view : {static_cast<const TensorView*>(&entry.input), &output})
    if (view->device().kind != DeviceKind::cpu)
      throw refused(name, fmt::format("memory on {} gets its output from the library: leave the "
                                      "output out",
                                      to_string(view->device())));
  entry.library_output = false;
  entry.output = output;
  entry.request.output_rows = rows_of(output.shape());
}

}  // namespace

Communicator::Communicator(std::shared_ptr<CommunicatorState> state) : state_(std::move(state)) {}

Communicator::~Communicator() = default;

std::unique_ptr<Communicator> Communicator::create(Options options) {
  return std::unique_ptr<Communicator>(new Communicator(tutti::create(std::move(options))));
}

int Communicator::rank() const { return state_->options.rank; }
int Communicator::size() const { return state_->options.size; }
int Communicator::local_rank() const { return state_->local_rank; }
int Communicator::local_size() const { return state_->local_size; }
int Communicator::hosts() const { return state_->hosts; }
std::string Communicator::backend() const { return state_->engine->backend().capabilities().name; }
const Options& Communicator::options() const { return state_->options; }

// --- reductions ---------------------------------------------------------------------------------

Work Communicator::allreduce(std::string_view name, TensorView tensor, ReduceOp op) {
  return allreduce(name, tensor, tensor, ReduceOptions{.op = op});
}

Work Communicator::allreduce(std::string_view name, TensorView tensor,
                             const ReduceOptions& options) {
  return allreduce(name, tensor, tensor, options);
}

Work Communicator::allreduce(std::string_view name, ConstTensorView constant, TensorView output,
                             const ReduceOptions& options) {
  const TensorView& input = constant.view();
  check_alike(name, input, output);
  if (input.device().kind == DeviceKind::cpu) {
    CommunicatorState::Allreduces allreduces(*state_, name, {}, 0, options);
    Work work(allreduces.add(name, input, output));
    allreduces.commit(true);
    return work;
  }
  auto entry = state_->entry(name, CollectiveKind::allreduce, input, output);
  set_reduction(entry->request, options);
  return state_->submit(std::move(entry));
}

Work Communicator::allreduce(const TensorHandle& handle, TensorView tensor,
                             const ReduceOptions& options) {
  auto* declared = handle.declared_.get();
  if (declared == nullptr || !declared->is_of(state_))
    throw Error(ErrorCode::invalid_argument,
                "this TensorHandle was not made by declare() of this Communicator");
  if (tensor.dtype() != declared->dtype || tensor.count() != declared->shape.count())
    throw refused(declared->name,
                  fmt::format("declared as {}{}, but {}{} came", to_string(declared->dtype),
                              declared->shape.to_string(), to_string(tensor.dtype()),
                              tensor.shape().to_string()));
  if (tensor.device().kind != DeviceKind::cpu)
    return allreduce(declared->name, tensor.reshaped(declared->shape), options);
  CommunicatorState::Allreduces allreduces(*state_, declared->name, {}, 0, options);
  Work work(allreduces.add(*declared, tensor));
  allreduces.commit(true);
  return work;
}

Work Communicator::grouped_allreduce(std::string_view group, std::span<const NamedTensor> tensors,
                                     const ReduceOptions& options) {
  const bool on_host = std::all_of(tensors.begin(), tensors.end(), [](const NamedTensor& named) {
    return named.tensor.device().kind == DeviceKind::cpu;
  });
  if (on_host && !group.empty() && !tensors.empty()) {
    const int size = static_cast<int>(tensors.size());
    CommunicatorState::Allreduces allreduces(*state_, group, group, size, options);
    auto& [work, last] = state_->group_works(group);
    allreduces.renew(work, last, group, size);
    for (const auto& [name, tensor] : tensors) allreduces.add(name, tensor, tensor, work);
    allreduces.commit(true);
    return Work(work);
  }
  std::vector<std::unique_ptr<Entry>> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back(state_->entry(name, CollectiveKind::allreduce, tensor, tensor));
    set_reduction(entries.back()->request, options);
  }
  return state_->submit_group(group, std::move(entries));
}

Work Communicator::reduce(std::string_view name, TensorView input, TensorView output, int root,
                          ReduceOp op) {
  state_->check_root(name, root);
  if (rank() == root) check_alike(name, input, output);
  auto entry =
      state_->entry(name, CollectiveKind::reduce, input, rank() == root ? output : TensorView());
  set_reduction(entry->request, ReduceOptions{.op = op});
  entry->request.signature.root = root;
  return state_->submit(std::move(entry));
}

namespace {

std::unique_ptr<Entry> reduce_scatter_entry(const CommunicatorState& state, std::string_view name,
                                            TensorView input, const ReduceOptions& options,
                                            std::span<const int64_t> rows) {
  if (input.shape().rank() == 0)
    throw refused(name, "a scalar has no rows to scatter; give it a first dimension");
  auto entry = state.entry(name, CollectiveKind::reduce_scatter, input, TensorView());
  set_reduction(entry->request, options);
  entry->request.rows = checked_rows(name, rows, state.options.size);
  return with_library_output(std::move(entry));
}

}  // namespace

Work Communicator::reduce_scatter(std::string_view name, TensorView input,
                                  const ReduceOptions& options, std::span<const int64_t> rows) {
  return state_->submit(reduce_scatter_entry(*state_, name, input, options, rows));
}

Work Communicator::reduce_scatter(std::string_view name, TensorView input, TensorView output,
                                  const ReduceOptions& options, std::span<const int64_t> rows) {
  auto entry = reduce_scatter_entry(*state_, name, input, options, rows);
  check_row_type(name, input, output);
  check_apart(name, input, output);
  give_output(*state_, *entry, output);
  return state_->submit(std::move(entry));
}

Work Communicator::grouped_reduce_scatter(std::string_view group,
                                          std::span<const NamedTensor> tensors,
                                          const ReduceOptions& options) {
  std::vector<std::unique_ptr<Entry>> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back(reduce_scatter_entry(*state_, name, tensor, options, {}));
  return state_->submit_group(group, std::move(entries));
}

// --- moving data --------------------------------------------------------------------------------

Work Communicator::allgather(std::string_view name, TensorView input) {
  return state_->submit(
      with_library_output(state_->entry(name, CollectiveKind::allgather, input, TensorView())));
}

Work Communicator::allgather(std::string_view name, TensorView input, TensorView output) {
  check_row_type(name, input, output);
  auto entry = state_->entry(name, CollectiveKind::allgather, input, output);
  entry->request.output_rows = rows_of(output.shape());
  return state_->submit(std::move(entry));
}

Work Communicator::grouped_allgather(std::string_view group, std::span<const NamedTensor> tensors) {
  std::vector<std::unique_ptr<Entry>> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back(
        with_library_output(state_->entry(name, CollectiveKind::allgather, tensor, TensorView())));
  return state_->submit_group(group, std::move(entries));
}

Work Communicator::broadcast(std::string_view name, TensorView tensor, int root) {
  state_->check_root(name, root);
  auto entry = state_->entry(name, CollectiveKind::broadcast, tensor, tensor);
  entry->request.signature.root = root;
  return state_->submit(std::move(entry));
}

Work Communicator::gather(std::string_view name, TensorView input, int root) {
  state_->check_root(name, root);
  auto entry =
      with_library_output(state_->entry(name, CollectiveKind::gather, input, TensorView()));
  entry->request.signature.root = root;
  return state_->submit(std::move(entry));
}

Work Communicator::gather(std::string_view name, TensorView input, TensorView output, int root) {
  state_->check_root(name, root);
  auto entry = state_->entry(name, CollectiveKind::gather, input, TensorView());
  entry->request.signature.root = root;
  if (rank() == root) {
    check_row_type(name, input, output);
    give_output(*state_, *entry, output);
  }
  return state_->submit(std::move(entry));
}

Work Communicator::scatter(std::string_view name, TensorView input, TensorView output, int root,
                           std::span<const int64_t> rows) {
  state_->check_root(name, root);
  const bool is_root = rank() == root;
  if (is_root && input.shape().rank() == 0)
    throw refused(name, "a scalar has no rows to scatter; give it a first dimension");
  if (is_root) check_row_type(name, input, output);
  auto entry =
      state_->entry(name, CollectiveKind::scatter, is_root ? input : TensorView(), TensorView());
  auto& signature = entry->request.signature;
  signature.root = root;
  give_output(*state_, *entry, output);
  if (is_root) {
    entry->request.rows = checked_rows(name, rows, size());
  } else {
    signature.dtype = signature.wire = output.dtype();
    signature.shape = output.shape();
  }
  return state_->submit(std::move(entry));
}

Work Communicator::scatter(std::string_view name, TensorView input, int root,
                           std::span<const int64_t> rows) {
  state_->check_root(name, root);
  const bool is_root = rank() == root;
  if (is_root && input.shape().rank() == 0)
    throw refused(name, "a scalar has no rows to scatter; give it a first dimension");
  auto entry = with_library_output(
      state_->entry(name, CollectiveKind::scatter, is_root ? input : TensorView(), TensorView()));
  entry->request.signature.root = root;
  if (is_root) entry->request.rows = checked_rows(name, rows, size());
  return state_->submit(std::move(entry));
}

namespace {

std::unique_ptr<Entry> alltoall_entry(const CommunicatorState& state, std::string_view name,
                                      TensorView input, std::span<const int64_t> splits) {
  const int rank = state.options.rank, size = state.options.size;
  const int64_t all = rows_of(input.shape());
  if (input.shape().rank() == 0)
    throw refused(name, "a scalar has no rows to send; give it a first dimension");
  auto rows = checked_rows(name, splits, size);
  if (rows.empty()) {
    if (all % size != 0)
      throw refused(name, fmt::format("{} rows cannot be split equally among {} ranks; give splits",
                                      all, size));
    rows.assign(static_cast<size_t>(size), all / size);
  }
  if (std::accumulate(rows.begin(), rows.end(), int64_t{0}) != all)
    throw refused(name, fmt::format("splits [{}] do not add up to the {} rows of rank {}",
                                    fmt::join(rows, ","), all, rank));
  auto entry =
      with_library_output(state.entry(name, CollectiveKind::alltoall, input, TensorView()));
  entry->request.rows = std::move(rows);
  return entry;
}

}  // namespace

Work Communicator::alltoall(std::string_view name, TensorView input,
                            std::span<const int64_t> splits) {
  return state_->submit(alltoall_entry(*state_, name, input, splits));
}

Work Communicator::alltoall(std::string_view name, TensorView input, TensorView output,
                            std::span<const int64_t> splits) {
  auto entry = alltoall_entry(*state_, name, input, splits);
  check_row_type(name, input, output);
  check_apart(name, input, output);
  give_output(*state_, *entry, output);
  return state_->submit(std::move(entry));
}

namespace {

std::unique_ptr<Entry> pair_entry(const CommunicatorState& state, CollectiveKind kind,
                                  std::string_view name, TensorView tensor, int peer) {
  state.check_root(name, peer);
  if (peer == state.options.rank)
    throw refused(name, fmt::format("rank {} cannot send to itself", peer));
  auto entry = state.entry(name, kind, tensor, tensor);
  entry->request.signature.root = peer;
  return entry;
}

}  // namespace

Work Communicator::send(std::string_view name, TensorView tensor, int to) {
  return state_->submit(pair_entry(*state_, CollectiveKind::send, name, tensor, to));
}

Work Communicator::recv(std::string_view name, TensorView tensor, int from) {
  return state_->submit(pair_entry(*state_, CollectiveKind::recv, name, tensor, from));
}

Work Communicator::barrier(std::string_view name) {
  return state_->submit(state_->entry(name, CollectiveKind::barrier, TensorView(), TensorView()));
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
    throw refused(name,
                  fmt::format("indices {}{} and values {}{} are no sparse tensor: want i64[k] "
                              "and [k, ...]",
                              to_string(tensor.indices.dtype()), tensor.indices.shape().to_string(),
                              to_string(tensor.values.dtype()), tensor.values.shape().to_string()));
  std::vector<std::unique_ptr<Entry>> entries;
  const auto add = [&](const char* part, const TensorView& view) {
    entries.push_back(with_library_output(state_->entry(
        fmt::format("{}.{}", name, part), CollectiveKind::allgather, view, TensorView())));
  };
  add("indices", tensor.indices);
  add("values", tensor.values);
  // The gathered values are scaled where they are gathered, before the Work is done.
  if (op == ReduceOp::average) entries[1]->divide_output_by = size();
  return state_->submit_group(name, std::move(entries));
}

// --- bytes ---------------------------------------------------------------------------------------

std::vector<std::byte> Communicator::broadcast_bytes(std::string_view name,
                                                     std::span<const std::byte> bytes, int root) {
  state_->check_root(name, root);
  int64_t length = static_cast<int64_t>(bytes.size());
  broadcast(fmt::format("{}.length", name), std::span(&length, 1), root).wait();
  std::vector<std::byte> all(static_cast<size_t>(length));
  if (rank() == root) std::copy(bytes.begin(), bytes.end(), all.begin());
  broadcast(name, TensorView(all.data(), Shape{length}, DataType::u8), root).wait();
  return all;
}

std::vector<std::vector<std::byte>> Communicator::allgather_bytes(
    std::string_view name, std::span<const std::byte> bytes) {
  std::vector<std::byte> own(bytes.begin(), bytes.end());
  auto work = allgather(
      name, TensorView(own.data(), Shape{static_cast<int64_t>(own.size())}, DataType::u8));
  const auto all = work.output();
  std::vector<std::vector<std::byte>> parts;
  const auto* at = all.data();
  for (const int64_t count : work.received_counts()) {
    parts.emplace_back(at, at + count);
    at += count;
  }
  return parts;
}

TensorHandle Communicator::declare(std::string_view name, Shape shape, DataType dtype) {
  state_->engine->check_not_forked(name);
  TensorHandle handle;
  handle.declared_ = std::make_shared<DeclaredTensor>(state_, name, shape, dtype);
  return handle;
}

void Communicator::close() noexcept { state_->engine->close(); }

Statistics Communicator::statistics() const { return state_->engine->statistics(); }

void Communicator::start_timeline(const std::string& file) {
  state_->engine->check_not_forked("start_timeline");
  state_->timeline_file = file;
  state_->engine->timeline().start();
}

void Communicator::stop_timeline() {
  state_->engine->check_not_forked("stop_timeline");
  const auto events = state_->engine->timeline().stop();
  const auto all = allgather_bytes("timeline " + json_string(state_->timeline_file),
                                   std::as_bytes(std::span(events.data(), events.size())));
  if (rank() != 0) return;
  std::vector<std::string> ranks;
  for (const auto& part : all)
    ranks.emplace_back(reinterpret_cast<const char*>(part.data()), part.size());
  write_timeline(state_->timeline_file, ranks);
}

void Communicator::timeline_span(std::string_view name, Clock::time_point begin,
                                 Clock::time_point end) {
  state_->engine->check_not_forked("timeline_span");
  state_->engine->timeline().nested_span("trainer", name, begin, end);
}

// --- other communicators ------------------------------------------------------------------------

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  state_->engine->check_not_forked("split");
  const SplitChoice mine{color, key};
  const int number = state_->splits++;
  const auto all =
      allgather_bytes(fmt::format("split {}", number), std::as_bytes(std::span(&mine, 1)));
  std::vector<SplitChoice> choices(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank)
    std::memcpy(&choices[rank], all[rank].data(), sizeof(SplitChoice));
  auto state = tutti::split(*state_, number, choices);
  return state ? std::unique_ptr<Communicator>(new Communicator(std::move(state))) : nullptr;
}

std::unique_ptr<Communicator> Communicator::shrink(Deadline deadline) {
  state_->engine->check_not_forked("shrink");
  return std::unique_ptr<Communicator>(new Communicator(tutti::shrink(*state_, deadline)));
}

}  // namespace tutti
