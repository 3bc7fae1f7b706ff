#include "tutti/backends/gloo/calls.h"

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/reduce.h>
#include <gloo/types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

constexpr uint8_t kPointToPoint = 0x40;  // beside Gloo's own prefixes

// Gloo sees numbers by their size only; what they mean, our kernels know.
template <class Function>
void with_number_of(int64_t bytes, Function&& function) {
  switch (bytes) {
    case 1:
      return function(uint8_t{});
    case 2:
      return function(uint16_t{});
    case 4:
      return function(uint32_t{});
    default:
      return function(uint64_t{});
  }
}

// Averages are divided at the end.
ReduceOp sum_of(ReduceOp op) { return op == ReduceOp::average ? ReduceOp::sum : op; }

void reduce_two(DataType dtype, ReduceOp op, void* output, const void* a, const void* b,
                size_t count) {
  const std::byte* inputs[] = {static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
  reduce(dtype, sum_of(op), static_cast<std::byte*>(output), inputs, static_cast<int64_t>(count));
}

// For Gloo's older algorithms: plain functions without a word of their own.
template <class Number, int dtype, int op>
void reduce_into(Number* output, const Number* input, size_t count) {
  reduce_two(static_cast<DataType>(dtype), static_cast<ReduceOp>(op), output, output, input, count);
}

template <class Number>
using Reducer = void (*)(Number*, const Number*, size_t);

template <class Number, int... numbers>
constexpr auto make_reducers(std::integer_sequence<int, numbers...>) {
  return std::array<Reducer<Number>, sizeof...(numbers)>{
      &reduce_into<Number, numbers / kReduceOpCount, numbers % kReduceOpCount>...};
}

template <class Number>
Reducer<Number> reducer_of(DataType dtype, ReduceOp op) {
  static constexpr auto kReducers =
      make_reducers<Number>(std::make_integer_sequence<int, kDataTypeCount * kReduceOpCount>());
  return kReducers[static_cast<size_t>(dtype) * kReduceOpCount + static_cast<size_t>(op)];
}

size_t sum(std::span<const int64_t> counts) {
  return static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
}

}  // namespace

class GlooCaller::Implementation {
 public:
  explicit Implementation(std::shared_ptr<GlooMesh> mesh) : mesh_(std::move(mesh)) {}

  void call(const Collective& what, uint32_t number, GlooAllreduce algorithm) {
    what_ = &what;
    number_ = number;
    element_ = static_cast<size_t>(size_of(what.dtype));
    switch (what.kind) {
      case CollectiveKind::allreduce:
        return allreduce(algorithm);
      case CollectiveKind::reduce:
        return reduce();
      case CollectiveKind::reduce_scatter:
        return reduce_scatter();
      case CollectiveKind::broadcast:
        return broadcast();
      case CollectiveKind::allgather:
        return allgather();
      case CollectiveKind::gather:
        return gather();
      case CollectiveKind::scatter:
        return scatter();
      case CollectiveKind::alltoall:
        return alltoall();
      case CollectiveKind::send:
        return send(what.root, input(), count() * element_);
      case CollectiveKind::recv:
        return recv(what.root, what.output, count() * element_);
      case CollectiveKind::barrier:
        break;
    }
    gloo::BarrierOptions options(mesh_);
    options.setTag(number_);
    gloo::barrier(options);
  }

 private:
  size_t count() const { return static_cast<size_t>(what_->send_counts[0]); }
  // Gloo does not write to inputs, though it takes them as what can be written.
  std::byte* input() const { return const_cast<std::byte*>(what_->input); }
  size_t own_count() const {
    return static_cast<size_t>(what_->send_counts[static_cast<size_t>(mesh_->rank)]);
  }
  auto reduction() const {
    return [dtype = what_->dtype, op = what_->op](void* output, const void* a, const void* b,
                                                  size_t n) {
      reduce_two(dtype, op, output, a, b, n);
    };
  }

  void allreduce(GlooAllreduce algorithm) {
    const bool in_place = what_->input == what_->output;
    const auto n = count();
    if (n == 0) return;
    with_number_of(static_cast<int64_t>(element_), [&](auto number) {
      using Number = decltype(number);
      auto* output = reinterpret_cast<Number*>(what_->output);
      if (algorithm == GlooAllreduce::halving_doubling && n * element_ <= kMostKept)
        return run_kept<Number>();
      if (algorithm == GlooAllreduce::halving_doubling && n * element_ <= INT_MAX) {
        if (!in_place) std::memcpy(output, what_->input, n * element_);
        hold(make<Number>(output, n)).run();
        return;
      }
      gloo::AllreduceOptions options(mesh_);
      if (!in_place) options.setInput(reinterpret_cast<Number*>(input()), n);
      options.setOutput(output, n);
      options.setReduceFunction(reduction());
      options.setTag(number_);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      gloo::allreduce(options);
    });
  }

  // Gloo's older algorithms are objects, bound to their connections, memory and a plain function.
  struct Algorithm {
    virtual ~Algorithm() noexcept(false) = default;  // as Gloo's are
    virtual void run() = 0;
  };
  template <class Number>
  struct HalvingDoubling final : Algorithm {
    HalvingDoubling(Reducer<Number> reducer, const std::shared_ptr<GlooMesh>& mesh, Number* data,
                    size_t n)
        : function(gloo::CUSTOM, reducer),
          algorithm(mesh, std::vector<Number*>{data}, static_cast<int>(n), &function) {}
    void run() override { algorithm.run(); }
    const gloo::ReductionFunction<Number> function;
    gloo::AllreduceHalvingDoubling<Number> algorithm;
  };
  template <class Number>
  std::unique_ptr<Algorithm> make(Number* data, size_t n) const {
    return std::make_unique<HalvingDoubling<Number>>(reducer_of<Number>(what_->dtype, what_->op),
                                                     mesh_, data, n);
  }
  // Its last notifications to the others may not have left yet.
  Algorithm& hold(std::unique_ptr<Algorithm> algorithm) {
    held_.push_back(std::move(algorithm));
    if (held_.size() > kMostHeld) held_.pop_front();
    return *held_.back();
  }

  // One that is used again, in memory of its own. All ranks have the same ones at the same call:
  // what they are made for is nothing but what the ranks agree on.
  struct Kept {
    DataType dtype;
    ReduceOp op;
    size_t bytes;
    std::unique_ptr<std::byte[]> memory;
    std::unique_ptr<Algorithm> algorithm;
  };
  template <class Number>
  void run_kept() {
    const auto used = count() * element_;
    // A few sizes serve all.
    const auto step = std::max<size_t>(kLeastKept, std::bit_floor(used) / 8);
    const auto bytes = (used + step - 1) / step * step;
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& one) {
      return one.dtype == what_->dtype && one.op == what_->op && one.bytes == bytes;
    });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
    } else {
      auto memory = std::make_unique<std::byte[]>(bytes);
      auto algorithm = make(reinterpret_cast<Number*>(memory.get()), bytes / element_);
      kept_.push_front({what_->dtype, what_->op, bytes, std::move(memory), std::move(algorithm)});
      kept_bytes_ += bytes;
      for (; kept_bytes_ > kMostKeptBytes; kept_.pop_back()) kept_bytes_ -= kept_.back().bytes;
    }
    auto& one = kept_.front();
    std::memcpy(one.memory.get(), what_->input, used);
    std::memset(one.memory.get() + used, 0, bytes - used);
    one.algorithm->run();
    std::memcpy(what_->output, one.memory.get(), used);
  }

  void reduce() {
    const auto n = count();
    if (n == 0) return;
    std::byte* output = what_->output;
    std::vector<std::byte> scratch;
    if (what_->root != mesh_->rank) {
      scratch.resize(n * element_);
      output = scratch.data();
    }
    with_number_of(static_cast<int64_t>(element_), [&](auto number) {
      using Number = decltype(number);
      gloo::ReduceOptions options(mesh_);
      options.setInput(reinterpret_cast<Number*>(input()), n);
      options.setOutput(reinterpret_cast<Number*>(output), n);
      options.setRoot(what_->root);
      options.setReduceFunction(reduction());
      options.setTag(number_);
      gloo::reduce(options);
    });
  }

  // Every rank gets the others' shares of its own part and reduces them in rank order: Gloo's
  // halving and doubling goes wrong where there are fewer elements than it takes for granted.
  void reduce_scatter() {
    const auto own_bytes = own_count() * element_;
    const auto size = static_cast<size_t>(mesh_->size);
    const auto rank = static_cast<size_t>(mesh_->rank);
    const auto all_bytes = sum(what_->send_counts) * element_;
    if (all_bytes == 0) return;
    const auto slot = gloo::Slot::build(kPointToPoint, number_);
    std::vector<std::byte> shares(own_bytes * size);
    const auto from = mesh_->createUnboundBuffer(input(), all_bytes);
    const auto to = mesh_->createUnboundBuffer(shares.data(), shares.size());
    int sent = 0, received = 0;
    size_t own_offset = 0;
    parts([&](int peer, size_t offset, size_t bytes) {
      if (peer == mesh_->rank) {
        own_offset = offset;
        return;
      }
      if (own_bytes > 0) {
        to->recv(peer, slot, static_cast<size_t>(peer) * own_bytes, own_bytes);
        ++received;
      }
      if (bytes > 0) {
        from->send(peer, slot, offset, bytes);
        ++sent;
      }
    });
    while (received-- > 0) to->waitRecv();
    while (sent-- > 0) from->waitSend();
    if (own_bytes == 0) return;
    std::vector<const std::byte*> inputs;
    for (size_t peer = 0; peer < size; ++peer)
      inputs.push_back(peer == rank ? what_->input + own_offset : shares.data() + peer * own_bytes);
    tutti::reduce(what_->dtype, sum_of(what_->op), what_->output, inputs, what_->send_counts[rank]);
  }

  void broadcast() {
    const auto n = count();
    if (n == 0) return;
    const bool is_root = what_->root == mesh_->rank;
    with_number_of(static_cast<int64_t>(element_), [&](auto number) {
      using Number = decltype(number);
      gloo::BroadcastOptions options(mesh_);
      if (is_root && what_->input != what_->output)
        options.setInput(reinterpret_cast<Number*>(input()), n);
      options.setOutput(reinterpret_cast<Number*>(what_->output), n);
      options.setRoot(what_->root);
      options.setTag(number_);
      gloo::broadcast(options);
    });
  }

  void allgather() {
    if (sum(what_->send_counts) == 0) return;
    with_number_of(static_cast<int64_t>(element_), [&](auto number) {
      using Number = decltype(number);
      gloo::AllgathervOptions options(mesh_);
      options.setInput(reinterpret_cast<Number*>(input()), own_count());
      options.setOutput(reinterpret_cast<Number*>(what_->output),
                        std::vector<size_t>(what_->send_counts.begin(), what_->send_counts.end()));
      options.setTag(number_);
      gloo::allgatherv(options);
    });
  }

  // Gloo gathers and scatters equal parts only; ours are sends of its buffers, as its own are.
  void gather() {
    if (what_->root != mesh_->rank) return send(what_->root, input(), own_count() * element_);
    parts([&](int peer, size_t offset, size_t bytes) {
      if (peer == mesh_->rank)
        copy(what_->output + offset, what_->input, bytes);
      else
        recv(peer, what_->output + offset, bytes);
    });
  }

  void scatter() {
    if (what_->root != mesh_->rank) return recv(what_->root, what_->output, own_count() * element_);
    parts([&](int peer, size_t offset, size_t bytes) {
      if (peer == mesh_->rank)
        copy(what_->output, what_->input + offset, bytes);
      else
        send(peer, input() + offset, bytes);
    });
  }

  void alltoall() {
    with_number_of(static_cast<int64_t>(element_), [&](auto number) {
      using Number = decltype(number);
      gloo::AlltoallvOptions options(mesh_);
      const auto vector = [](std::span<const int64_t> counts) {
        return std::vector<int64_t>(counts.begin(), counts.end());
      };
      options.setInput(reinterpret_cast<Number*>(input()), vector(what_->send_counts));
      options.setOutput(reinterpret_cast<Number*>(what_->output), vector(what_->recv_counts));
      options.setTag(number_);
      gloo::alltoallv(options);
    });
  }

  template <class Function>
  void parts(Function&& function) {
    size_t offset = 0;
    for (int peer = 0; peer < mesh_->size; ++peer) {
      const auto bytes =
          static_cast<size_t>(what_->send_counts[static_cast<size_t>(peer)]) * element_;
      function(peer, offset, bytes);
      offset += bytes;
    }
  }
  static void copy(std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
  }
  void send(int peer, std::byte* data, size_t bytes) {
    if (bytes == 0) return;
    const auto buffer = mesh_->createUnboundBuffer(data, bytes);
    buffer->send(peer, gloo::Slot::build(kPointToPoint, number_));
    buffer->waitSend();
  }
  void recv(int peer, std::byte* data, size_t bytes) {
    if (bytes == 0) return;
    const auto buffer = mesh_->createUnboundBuffer(data, bytes);
    buffer->recv(peer, gloo::Slot::build(kPointToPoint, number_));
    buffer->waitRecv();
  }

  static constexpr size_t kLeastKept = 64, kMostHeld = 2, kMostKeptBytes = 4 * kMostKept;
  const std::shared_ptr<GlooMesh> mesh_;
  std::deque<std::unique_ptr<Algorithm>> held_;
  std::list<Kept> kept_;  // the one used last in front
  size_t kept_bytes_ = 0;
  const Collective* what_ = nullptr;
  uint32_t number_ = 0;
  size_t element_ = 0;
};

GlooCaller::GlooCaller(std::shared_ptr<GlooMesh> mesh)
    : implementation_(std::make_unique<Implementation>(std::move(mesh))) {}
GlooCaller::~GlooCaller() = default;

void GlooCaller::call(const Collective& collective, uint32_t number, GlooAllreduce algorithm) {
  implementation_->call(collective, number, algorithm);
}

}  // namespace tutti
