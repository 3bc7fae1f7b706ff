#include "tools/bench/cases/exercise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::bench {

namespace {

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_shared(std::string_view collective) {
  return is_one_of(collective, {"allgather", "gather", "scatter", "reduce_scatter", "alltoall"});
}

bool reduces(std::string_view collective) {
  return is_one_of(collective, {"allreduce", "reduce", "reduce_scatter"});
}

}  // namespace

Volume volume_of(std::string_view collective, int64_t bytes, DataType dtype, int ranks) {
  if (collective == "barrier") return {};
  const int64_t elements = bytes / size_of(dtype);
  if (!is_shared(collective))
    return {std::max<int64_t>(1, elements), std::max<int64_t>(1, elements)};
  const int64_t count = std::max<int64_t>(1, elements / ranks);
  return {count * ranks, count};
}

bool exists(std::string_view collective, Way way, bool in_place) {
  const bool in_arena = way == Way::arena || way == Way::arena_blocking;
  if (collective == "allreduce")
    return in_place || (!in_arena && way != Way::vector && way != Way::grouped);
  if (way == Way::arena_blocking && in_place && collective == "allgather") return false;
  if (is_one_of(collective, {"allgather", "reduce"})) return true;
  return in_place == is_one_of(collective, {"broadcast", "barrier"});
}

Exercise::Exercise(Communicator& communicator, const Call& call)
    : communicator_(communicator),
      name_(fmt::format("{}.{}", call.collective, call.volume.total)),
      // Collectives that only move data can use any small numbers. They use the data for max, which
      // vary the most.
      data_(call.dtype, reduces(call.collective) ? call.op : ReduceOp::max, communicator.size()) {
  if (call.collective != "barrier") {
    make_buffers(call);
    expect(call);
  }
  make_run(call);
  refill();
  if (call.way == Way::replayed) run_until_replayed();
}

void Exercise::make_buffers(const Call& call) {
  const int rank = communicator_.rank();
  const auto [total, count] = call.volume;
  const auto kind = call.collective;
  const bool takes_all = is_one_of(kind, {"scatter", "reduce_scatter", "alltoall"});
  const bool has_input = !is_one_of(kind, {"scatter", "broadcast"}) || rank == call.root;
  if (has_input) pattern_.emplace(call.dtype, [&](int64_t i) { return data_.input(rank, i); });

  if (call.way == Way::arena || call.way == Way::arena_blocking) {
    const int64_t elements = is_shared(kind) && !takes_all ? count : total;
    arena_.emplace(communicator_,
                   std::vector<GradientArena::Array>{{name_, {elements}, call.dtype}},
                   ReduceOptions{.op = call.op});
    input_ = output_ = (*arena_)[name_];
    if (!call.in_place) output_ = memory(call, output_count(call));
    return;
  }
  if (call.way == Way::vector) {
    vector_.resize(static_cast<size_t>(total));
    input_ = output_ = vector_;
    return;
  }
  if (kind == "allgather" && call.in_place) {
    output_ = memory(call, total);
    input_ =
        TensorView(output_.data() + rank * count * size_of(call.dtype), Shape{count}, call.dtype);
    return;
  }
  input_ = memory(call, takes_all ? total : count);
  output_ = call.in_place ? input_ : memory(call, output_count(call));
}

TensorView Exercise::memory(const Call& call, int64_t count) {
  if (call.way == Way::region) {
    regions_.push_back(communicator_.allocate(count * size_of(call.dtype)));
    return regions_.back().view(Shape{count}, call.dtype);
  }
  return memory_.emplace_back(Shape{count}, call.dtype);
}

int64_t Exercise::output_count(const Call& call) {
  return is_one_of(call.collective, {"scatter", "reduce_scatter"}) ? call.volume.count
                                                                   : call.volume.total;
}

void Exercise::expect(const Call& call) {
  const int rank = communicator_.rank(), size = communicator_.size();
  const auto [total, count] = call.volume;
  const auto kind = call.collective;
  const auto from = [&](int other) {
    return Pattern(call.dtype, [&](int64_t i) { return data_.input(other, i); });
  };
  const auto reduced = [&] {
    return Pattern(call.dtype, [&](int64_t i) { return data_.reduced(i); });
  };
  if (kind == "allreduce" || (kind == "reduce" && rank == call.root))
    shares_.push_back({0, total, reduced(), 0});
  if (kind == "reduce_scatter") shares_.push_back({0, count, reduced(), rank * count});
  if (kind == "broadcast") shares_.push_back({0, total, from(call.root), 0});
  if (kind == "sendrecv") shares_.push_back({0, total, from((rank + size - 1) % size), 0});
  if (kind == "scatter") shares_.push_back({0, count, from(call.root), rank * count});
  if (kind == "allgather" || (kind == "gather" && rank == call.root))
    for (int other = 0; other < size; ++other)
      shares_.push_back({other * count, count, from(other), 0});
  if (kind == "alltoall")
    for (int other = 0; other < size; ++other)
      shares_.push_back({other * count, count, from(other), rank * count});
}

void Exercise::make_run(const Call& call) {
  auto& comm = communicator_;
  switch (call.way) {
    case Way::vector:
      run_ = [this, &comm, op = call.op] { comm.allreduce_blocking(name_, vector_, op); };
      return;
    case Way::arena:
      run_ = [this] {
        arena_->ready(name_);
        arena_->wait();
      };
      return;
    case Way::grouped:
      group_ = {{name_, input_}};
      run_ = [this, &comm, options = ReduceOptions{.op = call.op}] {
        comm.grouped_allreduce("group", group_, options).wait();
      };
      return;
    case Way::blocking:
    case Way::arena_blocking:  // the same call on memory that the ranks share
    case Way::region:
      return make_blocking(call);
    case Way::named:
    case Way::declared:
    case Way::replayed:
      break;
  }
  make_start(call);
  const bool by_handle = call.way == Way::declared || call.way == Way::replayed;
  for (const auto& name : names_) {
    if (by_handle) handles_.push_back(comm.declare(name, input_.shape(), call.dtype));
  }
  for (size_t i = 0; i < names_.size(); ++i)
    called_.push_back(by_handle ? OperationName(handles_[i]) : OperationName(names_[i]));
  run_ = [this] { start_(called_); };
}

Exercise::Ring Exercise::next_in_ring() {
  const int rank = communicator_.rank(), size = communicator_.size();
  const int from = (rank + size - 1) % size;
  names_ = {fmt::format("from {}", rank), fmt::format("from {}", from)};
  return {(rank + 1) % size, from};
}

void Exercise::make_start(const Call& call) {
  auto& comm = communicator_;
  const auto kind = call.collective;
  const int root = call.root;
  const ReduceOptions options{.op = call.op};
  using Names = std::span<const OperationName>;
  names_ = {name_};
  if (kind == "allreduce") {
    start_ = [this, &comm, options](Names names) {
      comm.allreduce(names[0], input_, output_, options).wait();
    };
  } else if (kind == "allgather") {
    start_ = [this, &comm](Names names) { comm.allgather(names[0], input_, output_).wait(); };
  } else if (kind == "broadcast") {
    start_ = [this, &comm, root](Names names) { comm.broadcast(names[0], input_, root).wait(); };
  } else if (kind == "reduce") {
    start_ = [this, &comm, root, op = call.op](Names names) {
      comm.reduce(names[0], input_, output_, root, op).wait();
    };
  } else if (kind == "gather") {
    start_ = [this, &comm, root](Names names) {
      comm.gather(names[0], input_, output_, root).wait();
    };
  } else if (kind == "scatter") {
    start_ = [this, &comm, root](Names names) {
      comm.scatter(names[0], input_, output_, root).wait();
    };
  } else if (kind == "reduce_scatter") {
    start_ = [this, &comm, options](Names names) {
      comm.reduce_scatter(names[0], input_, output_, options).wait();
    };
  } else if (kind == "alltoall") {
    start_ = [this, &comm](Names names) { comm.alltoall(names[0], input_, output_, {}).wait(); };
  } else if (kind == "sendrecv") {
    start_ = [this, &comm, ring = next_in_ring()](Names names) {
      auto send = comm.send(names[0], input_, ring.to);
      comm.recv(names[1], output_, ring.from).wait();
      send.wait();
    };
  } else {
    names_ = {"bench barrier"};
    start_ = [&comm](Names names) { comm.barrier(names[0]).wait(); };
  }
}

// Runs the same number of steps on every rank, because ranks may begin to replay in different
// steps. The statistics may count the last steps a little later.
void Exercise::run_until_replayed() {
  constexpr int kSteps = 48;
  run(kSteps / 2);
  const auto before = communicator_.statistics().replayed_buckets;
  run(kSteps / 2);
  if (communicator_.statistics().replayed_buckets == before)
    throw Error(ErrorCode::unavailable,
                fmt::format("{} was not replayed after {} equal steps; is TUTTI_REPLAY off?",
                            names_[0], kSteps));
  refill();
}

void Exercise::make_blocking(const Call& call) {
  auto& comm = communicator_;
  const auto kind = call.collective;
  const int root = call.root;
  if (kind == "allreduce" && input_.data() == output_.data())
    run_ = [this, &comm, op = call.op] { comm.allreduce_blocking(name_, input_, op); };
  else if (kind == "allreduce")
    run_ = [this, &comm, op = call.op] { comm.allreduce_blocking(name_, input_, output_, op); };
  else if (kind == "allgather")
    run_ = [this, &comm] { comm.allgather_blocking(name_, input_, output_); };
  else if (kind == "broadcast")
    run_ = [this, &comm, root] { comm.broadcast_blocking(name_, input_, root); };
  else if (kind == "reduce")
    run_ = [this, &comm, root, op = call.op] {
      comm.reduce_blocking(name_, input_, output_, root, op);
    };
  else if (kind == "gather")
    run_ = [this, &comm, root] { comm.gather_blocking(name_, input_, output_, root); };
  else if (kind == "scatter")
    run_ = [this, &comm, root] { comm.scatter_blocking(name_, input_, output_, root); };
  else if (kind == "reduce_scatter")
    run_ = [this, &comm, op = call.op] {
      comm.reduce_scatter_blocking(name_, input_, output_, op);
    };
  else if (kind == "alltoall")
    run_ = [this, &comm] { comm.alltoall_blocking(name_, input_, output_); };
  else if (kind == "sendrecv")
    run_ = [this, &comm, ring = next_in_ring()] {
      comm.sendrecv_blocking(names_[0], input_, ring.to, names_[1], output_, ring.from);
    };
  else
    run_ = [&comm] { comm.barrier_blocking(); };
}

void Exercise::refill() {
  // No element of a result has these bytes in any dtype.
  constexpr int kSpoilt = 0xee;
  if (output_.bytes() > 0)
    std::memset(output_.data(), kSpoilt, static_cast<size_t>(output_.bytes()));
  if (pattern_) pattern_->fill(input_.data(), input_.count());
}

int64_t Exercise::count_wrong() const {
  int64_t wrong = 0;
  const TensorView& result = output_;
  for (const auto& share : shares_) {
    wrong += share.pattern.count_wrong(result.data() + share.offset * size_of(result.dtype()),
                                       share.count, share.phase);
  }
  return wrong;
}

}  // namespace tutti::bench
