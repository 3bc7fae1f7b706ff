#include "tutti/core/persistent_allreduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <new>
#include <utility>
#include <vector>

#include "tutti/base/process/fork_guard.h"
#include "tutti/base/text.h"
#include "tutti/core/calls/communicator_state.h"
#include "tutti/core/calls/persistent_offer.h"
#include "tutti/kernels/reduce.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

namespace {

// For at most this many bytes, latency matters more than the number of times a byte is loaded.
constexpr int64_t kSmallBytes = 32 << 10;
constexpr int64_t kBytesOfBlock = 16 << 10;
constexpr double kPatience = 60;
constexpr size_t kAlignment = 256;

size_t rounded_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

class PersistentAllreduce::Plan {
 public:
  Plan(Communicator& communicator, std::shared_ptr<Engine> engine, std::string name,
       std::span<const TensorView> tensors, const ReduceOptions& options);
  ~Plan();

  void launch(StreamRef stream);
  void check() const;
  FlagVariant variant() const { return flags_.variant; }

 private:
  void describe(std::span<const TensorView> tensors, const ReduceOptions& options);
  void require_one_host() const;
  int sharers(std::span<const PersistentOffer> heard) const;
  void allocate(bool is_shared, PersistentOffer& offer);
  void agree(std::span<const PersistentOffer> heard) const;
  void reach(std::span<const PersistentOffer> heard);
  template <class T>
  std::shared_ptr<T> host_memory();
  void free() noexcept;
  bool is_near(int rank) const;

  const std::shared_ptr<Engine> engine_;
  const std::string name_;
  const int rank_, size_;
  DeviceRuntime* runtime_ = nullptr;
  Device device_;
  std::string what_;
  std::vector<Piece> pieces_;
  Scale prescale_;
  bool packs_ = true;
  std::byte* memory_ = nullptr;  // all ranks' flags (the board), then packed input, then result
  bool is_shared_ = false;       // memory_ is shared with other processes
  std::byte* data_ = nullptr;    // memory that this rank's peers read
  std::byte* result_ = nullptr;
  std::byte* state_ = nullptr;
  std::shared_ptr<FlagRecord> record_;
  std::shared_ptr<uint32_t> abort_;
  std::array<const std::byte*, kMostFlagRanks> inputs_{};
  std::array<std::byte*, kMostFlagRanks> outputs_{}, boards_{};
  std::vector<void*> mapped_;
  DeviceFlags flags_;
};

// --- the description of the operation -----------------------------------------------------------

void PersistentAllreduce::Plan::describe(std::span<const TensorView> tensors,
                                         const ReduceOptions& options) {
  if (tensors.empty()) throw refused(name_, "a persistent allreduce needs at least one tensor");
  device_ = tensors[0].device();
  flags_.dtype = options.wire.value_or(tensors[0].dtype());
  what_ = fmt::format("{} as {}, prescale {}, postscale {}:", to_string(options.op),
                      to_string(flags_.dtype), options.prescale, options.postscale);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    const auto shown = fmt::format("{}{}", to_string(tensor.dtype()), tensor.shape().to_string());
    if (tensor.device().kind == DeviceKind::cpu || tensor.device() != device_)
      throw refused(name_, fmt::format("tensor {} of a persistent allreduce lives on {}, expected "
                                       "all of them on one GPU; allreduce() takes any",
                                       i, to_string(tensor.device())));
    if (!tensor.is_row_major() || tensor.count() == 0)
      throw refused(name_,
                    fmt::format("tensor {} of a persistent allreduce is {}, expected elements "
                                "in row-major order",
                                i, tensor.count() == 0 ? shown : shown + " with strides"));
    const bool is_cast = tensor.dtype() != flags_.dtype;
    const bool may_be_cast = options.wire.has_value() &&
                             (flags_.dtype == DataType::f16 || flags_.dtype == DataType::bf16) &&
                             (tensor.dtype() == DataType::f32 || tensor.dtype() == DataType::f64);
    if (is_cast && !may_be_cast)
      throw refused(name_,
                    fmt::format("tensor {} of a persistent allreduce is {}, but this one reduces "
                                "{}; make one for each dtype, or give a wire type of f16 or bf16",
                                i, shown, to_string(flags_.dtype)));
    if (!can_reduce(tensor.dtype(), options.op))
      throw op_means_nothing(name_, tensor.dtype(), options.op);
    pieces_.push_back({tensor.data(), tensor.dtype(), flags_.count, tensor.count()});
    flags_.count += tensor.count();
    what_ += ' ' + shown;
  }
  prescale_.factor = options.prescale;
  flags_.op = options.op == ReduceOp::average ? ReduceOp::sum : options.op;
  flags_.scale.factor = options.postscale;
  if (options.op == ReduceOp::average) flags_.scale.divisor = size_;
  const int64_t bytes = flags_.count * size_of(flags_.dtype);
  flags_.variant = bytes > kSmallBytes             ? FlagVariant::two_shot
                   : flags_.dtype == DataType::f32 ? FlagVariant::packets
                                                   : FlagVariant::one_shot;
  flags_.blocks = static_cast<int>(
      std::clamp<int64_t>((bytes + kBytesOfBlock - 1) / kBytesOfBlock, 1, kMostFlagBlocks));
  const double patience = engine_->options().operation_timeout;
  flags_.patience = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(patience > 0 ? patience : kPatience));
}

bool PersistentAllreduce::Plan::is_near(int rank) const {
  const auto& places = engine_->context().places;
  const auto &own = places[static_cast<size_t>(rank_)], &its = places[static_cast<size_t>(rank)];
  return own.host == its.host && own.shares_pids(its) && own.pid == its.pid;
}

// --- memory -------------------------------------------------------------------------------------

// Returns how many ranks share one GPU as threads of one process. If there are several such GPUs,
// returns the greatest number. All ranks get the same result.
int PersistentAllreduce::Plan::sharers(std::span<const PersistentOffer> heard) const {
  const auto& places = engine_->context().places;
  int most = 1;
  for (size_t rank = 0; rank < heard.size(); ++rank) {
    int here = 0;
    for (size_t other = 0; other < heard.size(); ++other)
      here += places[rank].pid == places[other].pid && heard[rank].device == heard[other].device;
    most = std::max(most, here);
  }
  return most;
}

// Allocates this rank's memory and zeroes it before any peer learns of it.
void PersistentAllreduce::Plan::allocate(bool is_shared, PersistentOffer& offer) {
  is_shared_ = is_shared;
  // If all ranks are threads of this process, their kernels read an input that is in one piece
  // directly, without a copy.
  packs_ = is_shared || pieces_.size() > 1 || pieces_[0].dtype != flags_.dtype ||
           !prescale_.is_one() || flags_.variant == FlagVariant::one_shot;
  flags_.inputs = std::span(inputs_).first(static_cast<size_t>(size_));
  const auto bytes = rounded_up(static_cast<size_t>(flags_.count * size_of(flags_.dtype)));
  const auto board = rounded_up(flags_.board_bytes());
  const bool is_apart = flags_.variant == FlagVariant::one_shot;
  const auto all = board + (packs_ ? bytes : 0) + (is_apart ? bytes : 0);
  memory_ =
      static_cast<std::byte*>(is_shared ? runtime_->allocate_shared(all, device_, offer.handle)
                                        : runtime_->allocate(all, device_));
  state_ = static_cast<std::byte*>(runtime_->allocate(DeviceFlags::kStateBytes, device_));
  const auto stream = runtime_->create_stream(device_);
  const auto clear = [&](std::byte* data, size_t count) {
    runtime_->pack({data, DataType::u8, static_cast<int64_t>(count), 0, 0, false}, {}, {}, false,
                   stream);
  };
  clear(memory_, all);
  clear(state_, DeviceFlags::kStateBytes);
  runtime_->synchronize(stream);
  runtime_->destroy_stream(stream);
  data_ = packs_ ? memory_ + board : pieces_[0].data;
  result_ = is_apart ? data_ + bytes : data_;
  offer.device = device_.index;
  offer.board = reinterpret_cast<uintptr_t>(memory_);
  offer.data = reinterpret_cast<uintptr_t>(data_);
  offer.identity = runtime_->identity(device_);
}

template <class T>
std::shared_ptr<T> PersistentAllreduce::Plan::host_memory() {
  auto* const memory = new (runtime_->allocate_host(sizeof(T))) T{};
  return {memory, [runtime = runtime_](T* word) { runtime->free_host(word); }};
}

void PersistentAllreduce::Plan::reach(std::span<const PersistentOffer> heard) {
  // If ranks share a GPU, it must run the blocks of all these ranks at the same time.
  if (flags_.variant == FlagVariant::two_shot)
    flags_.blocks = std::min(flags_.blocks, std::max(kMostFlagBlocks / sharers(heard), 1));
  for (int rank = 0; rank < size_; ++rank) {
    const auto at = static_cast<size_t>(rank);
    const auto& offer = heard[at];
    auto* board = reinterpret_cast<std::byte*>(offer.board);
    auto* data = reinterpret_cast<std::byte*>(offer.data);
    if (!is_near(rank)) {
      board = static_cast<std::byte*>(runtime_->map_shared(offer.handle, device_));
      mapped_.push_back(board);
      data = board + rounded_up(flags_.board_bytes());  // all ranks use this layout
    } else if (rank != rank_) {
      runtime_->reach(device_, {device_.kind, offer.device});
    }
    boards_[at] = board;
    inputs_[at] = data;
    outputs_[at] = rank == rank_ ? result_ : data;
  }
  const auto size = static_cast<size_t>(size_);
  flags_.outputs = std::span(outputs_).first(size);
  flags_.boards = std::span(boards_).first(size);
  flags_.rank = rank_;
  flags_.state = state_;
  record_ = host_memory<FlagRecord>();
  abort_ = host_memory<uint32_t>();
  flags_.record = record_.get();
  flags_.abort = abort_.get();
  engine_->raise_when_over(abort_);
}

// --- steps that all ranks take together ---------------------------------------------------------

// All ranks know which host each rank is on, so all of them throw the same error.
void PersistentAllreduce::Plan::require_one_host() const {
  if (size_ > kMostFlagRanks)
    throw Error(ErrorCode::unavailable,
                fmt::format("persistent allreduce {}: it takes {} ranks at most, and there are {}; "
                            "use allreduce()",
                            shown_name(name_), kMostFlagRanks, size_));
  const auto& places = engine_->context().places;
  for (int rank = 1; rank < size_; ++rank) {
    const auto& its = places[static_cast<size_t>(rank)];
    if (its.host == places[0].host && its.shares_pids(places[0])) continue;
    throw Error(
        ErrorCode::unavailable,
        fmt::format("persistent allreduce {}: rank 0 runs on {} and rank {} on {}, which is "
                    "another host or PID namespace; use allreduce()",
                    shown_name(name_), places[0].host_name, rank, its.host_name))
        .with_rank(rank);
  }
}

void PersistentAllreduce::Plan::agree(std::span<const PersistentOffer> heard) const {
  for (int rank = 0; rank < size_; ++rank) {
    const auto& its = heard[static_cast<size_t>(rank)];
    if (!its.failure.empty())
      throw Error(its.code, fmt::format("persistent allreduce {}: rank {}: {}", shown_name(name_),
                                        rank, its.failure))
          .with_rank(rank)
          .with_tensor(name_);
    if (its.what != heard[0].what)
      throw Error(ErrorCode::mismatch,
                  fmt::format("persistent allreduce {}: rank 0 gave {}; rank {} gave {}; all ranks "
                              "must give the same tensors and options in the same order",
                              shown_name(name_), heard[0].what, rank, its.what))
          .with_rank(rank)
          .with_tensor(name_);
  }
  // Kernels of different processes on one GPU run one after another, so they cannot wait for each
  // other.
  for (int rank = 0; rank < size_; ++rank)
    for (int other = 0; other < rank; ++other) {
      const auto& places = engine_->context().places;
      const auto& identity = heard[static_cast<size_t>(rank)].identity;
      if (identity.empty() || identity != heard[static_cast<size_t>(other)].identity ||
          places[static_cast<size_t>(rank)].pid == places[static_cast<size_t>(other)].pid)
        continue;
      throw Error(
          ErrorCode::unavailable,
          fmt::format("persistent allreduce {}: ranks {} and {} are processes that share the "
                      "GPU at {}, whose kernels cannot wait for each other; give each a GPU, "
                      "make the ranks threads, or use allreduce() with backend peer",
                      shown_name(name_), other, rank, identity))
          .with_rank(rank)
          .with_tensor(name_);
    }
}

PersistentAllreduce::Plan::Plan(Communicator& communicator, std::shared_ptr<Engine> engine,
                                std::string name, std::span<const TensorView> tensors,
                                const ReduceOptions& options)
    : engine_(std::move(engine)),
      name_(std::move(name)),
      rank_(communicator.rank()),
      size_(communicator.size()) {
  engine_->check_not_forked(name_);
  describe(tensors, options);
  require_one_host();
  // If one rank cannot take part, all ranks learn the reason here, before any rank waits for it.
  const auto tell = [&](std::string_view step, auto&& body) {
    PersistentOffer offer;
    offer.what = what_;
    try {
      body(offer);
    } catch (const Error& error) {
      offer.failure = error.what();
      offer.code = error.code();
    }
    std::vector<PersistentOffer> heard;
    for (const auto& bytes :
         communicator.allgather_bytes(fmt::format("{} {}", name_, step), encode_offer(offer)))
      heard.push_back(decode_offer(static_cast<int>(heard.size()), bytes));
    agree(heard);
    return heard;
  };
  try {
    const auto heard = tell("prepares", [&](PersistentOffer& offer) {
      runtime_ = &device_runtime(device_.kind);
      bool all_near = true;
      for (int rank = 0; rank < size_; ++rank) all_near &= is_near(rank);
      allocate(!all_near, offer);
    });
    tell("reaches", [&](PersistentOffer&) { reach(heard); });
  } catch (...) {
    free();
    throw;
  }
}

PersistentAllreduce::Plan::~Plan() {
  // In a fork all resources belong to the parent process.
  if (!engine_->forked()) free();
}

void PersistentAllreduce::Plan::free() noexcept {
  for (void* const memory : mapped_) runtime_->unmap_shared(memory);
  if (memory_ == nullptr) return;
  if (state_ != nullptr) runtime_->free(state_, device_);
  // A peer's kernel may still access this memory in a round that this rank has given up.
  if (record_ && std::atomic_ref(record_->is_set).load(std::memory_order_acquire) != 0)
    return keep_for_good(memory_);
  if (is_shared_)
    runtime_->free_shared(memory_);
  else
    runtime_->free(memory_, device_);
}

// --- rounds -------------------------------------------------------------------------------------

void PersistentAllreduce::Plan::launch(StreamRef stream) {
  check();
  if (packs_)
    runtime_->pack({data_, flags_.dtype, flags_.count, 0, 0, false}, pieces_, prescale_, false,
                   stream);
  runtime_->reduce_by_flags(flags_, stream);
  if (packs_)
    runtime_->unpack({result_, flags_.dtype, flags_.count, 0, 0, false}, pieces_, {}, {}, stream);
}

void PersistentAllreduce::Plan::check() const {
  engine_->check_not_forked(name_);
  if (const auto error = engine_->broken()) throw *error;
  if (std::atomic_ref(*abort_).load(std::memory_order_acquire) != 0)
    throw Error(
        ErrorCode::closed,
        fmt::format("persistent allreduce {}: its Communicator is closed", shown_name(name_)))
        .with_tensor(name_);
  if (std::atomic_ref(record_->is_set).load(std::memory_order_acquire) == 0) return;
  throw Error(
      ErrorCode::timeout,
      fmt::format("persistent allreduce {}: in round {} a kernel of rank {} waited {:.1f} s "
                  "for rank {}, which had come to round {}; nothing is reduced any more: make "
                  "a new one on all ranks",
                  shown_name(name_), record_->expected, record_->rank,
                  std::chrono::duration<double>(flags_.patience).count(), record_->peer,
                  record_->seen))
      .with_rank(record_->peer)
      .with_tensor(name_);
}

PersistentAllreduce::PersistentAllreduce(Communicator& communicator, std::string name,
                                         std::span<const TensorView> tensors,
                                         const ReduceOptions& options)
    : plan_(std::make_unique<Plan>(communicator, communicator.state_->engine, std::move(name),
                                   tensors, options)) {}

PersistentAllreduce::PersistentAllreduce(Communicator& communicator, std::string name,
                                         const TensorView& tensor, const ReduceOptions& options)
    : PersistentAllreduce(communicator, std::move(name), {&tensor, 1}, options) {}

PersistentAllreduce::~PersistentAllreduce() = default;

void PersistentAllreduce::launch(StreamRef stream) { plan_->launch(stream); }

void PersistentAllreduce::check() const { plan_->check(); }

std::string_view PersistentAllreduce::variant() const {
  switch (plan_->variant()) {
    case FlagVariant::packets:
      return "packets";
    case FlagVariant::one_shot:
      return "one_shot";
    case FlagVariant::two_shot:
      break;
  }
  return "two_shot";
}

}  // namespace tutti
