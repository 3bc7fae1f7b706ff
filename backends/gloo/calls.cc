#include "tutti/backends/gloo/calls.h"

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/reduce.h>
#include <gloo/types.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

constexpr uint8_t kPointToPoint = 0x40;  // differs from the prefixes of Gloo's own slots

// Calls `function` with a value of a number type that has this many bytes. Gloo only needs the size
// of an element; our kernels know its type.
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

// Returns the operator for Gloo. An average is a sum in Gloo. It is divided after Gloo's call.
ReduceOp sum_of(ReduceOp op) { return op == ReduceOp::average ? ReduceOp::sum : op; }

void reduce_two(DataType dtype, ReduceOp op, void* output, const void* a, const void* b,
                size_t count) {
  const std::byte* inputs[] = {static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
  reduce(dtype, sum_of(op), static_cast<std::byte*>(output), inputs, static_cast<int64_t>(count));
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
  // Gloo does not write to inputs, though it takes them as writable memory.
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
    if (algorithm == GlooAllreduce::halving_doubling) return halving_doubling();
    with_number_of(static_cast<int64_t>(element_), [&](auto number) {
      using Number = decltype(number);
      auto* output = reinterpret_cast<Number*>(what_->output);
      gloo::AllreduceOptions options(mesh_);
      if (!in_place) options.setInput(reinterpret_cast<Number*>(input()), n);
      options.setOutput(output, n);
      options.setReduceFunction(reduction());
      options.setTag(number_);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      gloo::allreduce(options);
    });
  }

  // Recursive vector halving, then doubling (Rabenseifner, "Optimization of collective reduction
  // operations", 2004). It works in pieces, so that one piece is reduced while the next is on its
  // way. Ranks beyond the largest power of two send their input to a partner rank and receive the
  // result.
  //
  // The output may be the same memory as the input. A part of the output is only received from a
  // rank that has already received the same part of this rank's input.
  void halving_doubling() {
    const int rank = mesh_->rank;
    const int power = std::bit_floor(static_cast<unsigned>(mesh_->size));
    const auto bytes = count() * element_;
    if (rank >= power) {
      send(rank - power, input(), bytes);
      return recv(rank - power, what_->output, bytes);
    }
    const bool has_guest = rank + power < mesh_->size;
    // Each halving step may round an odd number of elements up. So there is room for one more
    // element per step.
    const auto room = bytes + static_cast<size_t>(std::bit_width(unsigned(power))) * element_;
    if (shares_.size() < room) shares_.resize(room);
    std::byte* source = input();
    if (has_guest) {
      recv(rank + power, shares_.data(), bytes);
      reduce_two(what_->dtype, what_->op, what_->output, source, shares_.data(), count());
      source = what_->output;
    }

    struct Step {
      Part kept, given;
      std::byte* share;  // memory for the partner's elements of the kept part
      Pieces halving_in, halving_out, doubling;
    };
    std::deque<Step> steps;
    const uint64_t slot = gloo::Slot::build(kPointToPoint, number_);
    Part part{0, bytes};
    std::byte* share = shares_.data();
    for (int distance = power / 2; distance > 0; distance /= 2) {
      const auto half = part.bytes / element_ / 2 * element_;
      const Part lower{part.offset, half}, upper{part.offset + half, part.bytes - half};
      const bool keeps_lower = (rank & distance) == 0;
      part = keeps_lower ? lower : upper;
      const int partner = rank ^ distance;
      auto& step = steps.emplace_back(
          Step{part,
               keeps_lower ? upper : lower,
               share,
               {*mesh_, share, part.bytes, partner, slot + 1},
               {*mesh_, steps.empty() ? source : what_->output, bytes, partner, slot + 1},
               {*mesh_, what_->output, bytes, partner, slot + 2}});
      step.halving_in.recv({0, part.bytes});
      step.doubling.recv(step.given);
      share += part.bytes;
    }

    for (auto& step : steps) {
      step.halving_out.send(step.given);
      const bool is_last = &step == &steps.back();
      in_pieces(step.kept, [&](Part piece) {
        step.halving_in.await();
        reduce_two(what_->dtype, what_->op, what_->output + piece.offset, source + piece.offset,
                   step.share + (piece.offset - step.kept.offset), piece.bytes / element_);
        if (is_last) step.doubling.send(piece);
      });
      source = what_->output;
    }
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      if (step != steps.rbegin()) step->doubling.send(step->kept);
      in_pieces(step->given, [&](Part) { step->doubling.await(); });
    }
    for (auto& step : steps) {
      step.halving_out.await_sent();
      step.doubling.await_sent();
    }
    if (has_guest) send(rank + power, what_->output, bytes);
  }

  struct Part {
    size_t offset, bytes;
  };
  static constexpr size_t kPieceBytes = 512 << 10;
  template <class Function>
  static void in_pieces(Part part, Function&& function) {
    for (size_t at = 0; at < part.bytes; at += kPieceBytes)
      function(Part{part.offset + at, std::min(kPieceBytes, part.bytes - at)});
  }

  // Memory whose parts are exchanged with one rank, in pieces and in order. There is one rank per
  // object, because Gloo reports only the sender of the last piece.
  class Pieces {
   public:
    Pieces(GlooMesh& mesh, std::byte* data, size_t bytes, int peer, uint64_t slot)
        : buffer_(mesh.createUnboundBuffer(data, bytes)), peer_(peer), slot_(slot) {}

    void send(Part part) {
      in_pieces(part, [&](Part piece) {
        buffer_->send(peer_, slot_, piece.offset, piece.bytes);
        ++sent_;
      });
    }
    void recv(Part part) {
      in_pieces(part, [&](Part piece) { buffer_->recv(peer_, slot_, piece.offset, piece.bytes); });
    }
    /// Waits until the next piece has arrived.
    void await() { buffer_->waitRecv(); }
    void await_sent() {
      for (; sent_ > 0; --sent_) buffer_->waitSend();
    }

   private:
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
    int peer_;
    uint64_t slot_;
    int sent_ = 0;
  };

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

  // Every rank owns a share. It receives the inputs of all other ranks for this share and reduces
  // them in rank order. Gloo's own function is not used, because it gives wrong results if there
  // are fewer elements than it assumes.
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

  // Gathers parts of any size. Gloo's own gather and scatter take only equal parts. So gather() and
  // scatter() send through Gloo's buffers directly, as Gloo's own functions do.
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
    // Gloo sends while it receives. So in place it would send elements that it has just received.
    std::byte* source = input();
    std::vector<std::byte> kept;
    if (source == what_->output) {
      const auto& counts = what_->send_counts;
      const auto numbers = std::accumulate(counts.begin(), counts.end(), int64_t{0});
      kept.assign(source, source + static_cast<size_t>(numbers) * element_);
      source = kept.data();
    }
    with_number_of(static_cast<int64_t>(element_), [&](auto number) {
      using Number = decltype(number);
      gloo::AlltoallvOptions options(mesh_);
      const auto vector = [](std::span<const int64_t> counts) {
        return std::vector<int64_t>(counts.begin(), counts.end());
      };
      options.setInput(reinterpret_cast<Number*>(source), vector(what_->send_counts));
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

  const std::shared_ptr<GlooMesh> mesh_;
  std::vector<std::byte> shares_;  // parts of other ranks, in an allreduce
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
