#include "tutti/core/scheduling/run.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

namespace tutti {

namespace {

size_t rounded(size_t bytes) {
  constexpr size_t kLeast = 4096;
  const size_t step = std::max(kLeast, std::bit_floor(bytes) / 8);
  return std::max(kLeast, (bytes + step - 1) / step * step);
}

}  // namespace

std::unique_ptr<Region> RegionPool::take(size_t bytes, Device device) {
  const size_t lane = device.kind == DeviceKind::cpu ? 0 : kLaneBytes;
  const size_t wanted = rounded(bytes) + lane;
  ++takes_;
  // Searches from the end, because the region that was used last may still be in the caches.
  const auto found = std::find_if(free_.rbegin(), free_.rend(), [&](const Free& free) {
    return free.device == device && free.region->bytes() == wanted;
  });
  if (found == free_.rend()) {
    ++allocations_;
    return backend_.allocate(wanted, device);
  }
  auto region = std::move(found->region);
  free_.erase(std::next(found).base());
  return region;
}

void RegionPool::give_back(std::unique_ptr<Region> region, Device device) {
  constexpr size_t kMost = 64;
  if (!region) return;
  free_.push_back({device, std::move(region), takes_});
  if (free_.size() > kMost) free_.erase(free_.begin());
  if (takes_ - free_.front().since <= kForgetAfter) return;
  std::erase_if(free_, [&](const Free& free) {
    return takes_ - free.since > kForgetAfter && free.device.kind == DeviceKind::cpu;
  });
}

size_t RegionPool::free_bytes() const {
  size_t bytes = 0;
  for (const auto& free : free_) bytes += free.region->bytes();
  return bytes;
}

namespace {

// Fills `data` with `value`, the neutral element of the op. A rank without data contributes it, so
// that the result does not change.
template <class T>
void fill_value(std::byte* data, int64_t count, T value) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(data + i * sizeof value, &value, sizeof value);
}

template <class T>
void fill_neutral_number(ReduceOp op, std::byte* data, int64_t count) {
  using Limits = std::numeric_limits<T>;
  T value{};
  if (op == ReduceOp::product) value = T{1};
  if (op == ReduceOp::min) value = Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (op == ReduceOp::max) value = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  if constexpr (std::is_integral_v<T>)
    if (op == ReduceOp::band) value = static_cast<T>(~T{});
  fill_value(data, count, value);
}

void fill_neutral(DataType dtype, ReduceOp op, std::byte* data, int64_t count) {
  switch (dtype) {
    case DataType::f64:
      return fill_neutral_number<double>(op, data, count);
    case DataType::f32:
      return fill_neutral_number<float>(op, data, count);
    case DataType::f16:
    case DataType::bf16: {
      float value = 0;
      fill_neutral_number<float>(op, reinterpret_cast<std::byte*>(&value), 1);
      const uint16_t bits =
          dtype == DataType::f16 ? to_float16(value).bits : to_bfloat16(value).bits;
      return fill_value(data, count, bits);
    }
    case DataType::i8:
      return fill_neutral_number<int8_t>(op, data, count);
    case DataType::i16:
      return fill_neutral_number<int16_t>(op, data, count);
    case DataType::i32:
      return fill_neutral_number<int32_t>(op, data, count);
    case DataType::i64:
      return fill_neutral_number<int64_t>(op, data, count);
    case DataType::u8:
      return fill_neutral_number<uint8_t>(op, data, count);
    case DataType::u16:
      return fill_neutral_number<uint16_t>(op, data, count);
    case DataType::u32:
      return fill_neutral_number<uint32_t>(op, data, count);
    case DataType::u64:
      return fill_neutral_number<uint64_t>(op, data, count);
    case DataType::boolean: {
      const bool all = op == ReduceOp::min || op == ReduceOp::product || op == ReduceOp::band;
      return fill_value(data, count, static_cast<uint8_t>(all));
    }
    case DataType::raw:
      return;  // nothing reduces it
  }
}

int64_t sum(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

Run::~Run() {
  operation_.reset();
  // A copy that was given up may still wait for its input. Its memory is never freed.
  if (on_device_.copying && !on_device_.copying->is_over()) {
    static_cast<void>(region_.release());
    static_cast<void>(on_device_.copying.release());
  }
  pool_.give_back(std::move(region_), device_);
  pool_.give_back(std::move(output_region_));
}

int64_t Run::bytes() const { return sum(send_counts_) * size_of(collective_.dtype); }

std::unique_ptr<Run> Run::bucket(uint64_t tag, RegionPool& pool, const Bucket& bucket,
                                 std::vector<Entry*> entries, int contributors, Device device) {
  auto run = std::make_unique<Run>(tag, pool);
  run->entries_ = std::move(entries);
  run->slices_ = bucket.slices;
  run->send_counts_ = {bucket.count};
  run->contributors_ = contributors;
  run->device_ = device;
  auto& collective = run->collective_;
  collective.kind = CollectiveKind::allreduce;
  collective.dtype = bucket.key.wire;
  collective.op = bucket.key.op;
  collective.scale.factor = bucket.key.postscale;
  collective.send_counts = run->send_counts_;
  run->prescale_.factor = bucket.key.prescale;

  run->region_bytes_ =
      std::max<size_t>(1, static_cast<size_t>(bucket.count * size_of(bucket.key.wire)));
  run->may_share_ = bucket.key.arena >= 0 && bucket.key.joined.empty() && run->prescale_.is_one();
  run->bind();
  return run;
}

// Returns whether the Run can be used again. An operation with memory of its own cannot be used
// again, because that memory is made or filled for one use only.
bool Run::can_repeat() const {
  if (!slices_.empty()) return true;
  if (entries_.empty() || std::ranges::any_of(entries_, &Entry::library_output)) return false;
  return !members_.empty() || (!region_ && !output_region_);
}

void Run::repeat(uint64_t tag) {
  tag_ = tag;
  life_ = {};
  operation_.reset();
  if (!members_.empty()) return bind_members();
  if (slices_.empty()) {
    collective_.input = entries_[0]->input.data();
    collective_.output = entries_[0]->output.data();
    if (!rows_.empty()) entries_[0]->work->set_received(rows_);
    return;
  }
  pool_.give_back(std::move(region_), device_);
  collective_.input = nullptr;
  collective_.output = nullptr;
  bind();
}

void Run::bind() {
  inputs_.clear();
  outputs_.clear();
  windows_.clear();
  bool shares = may_share_;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& slice = slices_[i];
    const auto& entry = *entries_[i];
    const auto piece = [&](const TensorView& view) {
      return Piece{view.data() + slice.begin * size_of(view.dtype()), view.dtype(), slice.offset,
                   slice.count};
    };
    inputs_.push_back(piece(entry.input));
    outputs_.push_back(piece(entry.output));
    const auto& input = inputs_.back();
    shares &=
        entry.shared && input.data == outputs_.back().data && input.dtype == collective_.dtype;
    if (!shares) continue;
    // Adjacent windows are merged into one.
    const auto bytes = [&](const Window& window) { return window.count * size_of(input.dtype); };
    if (!windows_.empty() && windows_.back().data + bytes(windows_.back()) == input.data)
      windows_.back().count += slice.count;
    else
      windows_.push_back({input.data, slice.count});
  }
  if (!shares) windows_.clear();
  updates_ = !entries_.empty() && entries_[0]->update != nullptr;
}

void Run::fill(void* self, Range range, std::byte* bucket) {
  auto& run = *static_cast<Run*>(self);
  pack(run.inputs_, run.collective_.dtype, bucket, range.begin, range.end(), run.prescale_);
}

void Run::drain(void* self, Range range, const std::byte* bucket, Scale scale) {
  auto& run = *static_cast<Run*>(self);
  unpack(run.outputs_, run.collective_.dtype, bucket, range.begin, range.end(), scale);
}

namespace {

// If `range` of the bucket is in a single tensor with the bucket's dtype, returns its address, else
// null.
std::byte* single_place(std::span<const Piece> pieces, DataType dtype, Range range) {
  const auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) {
    return p.offset + p.count <= range.begin;
  });
  if (piece == pieces.end() || piece->dtype != dtype || piece->offset > range.begin ||
      piece->offset + piece->count < range.end())
    return nullptr;
  return piece->data + (range.begin - piece->offset) * size_of(dtype);
}

}  // namespace

const std::byte* Run::input_of(void* self, Range range) {
  auto& run = *static_cast<Run*>(self);
  if (!run.prescale_.is_one()) return nullptr;
  return single_place(run.inputs_, run.collective_.dtype, range);
}

std::byte* Run::output_of(void* self, Range range) {
  auto& run = *static_cast<Run*>(self);
  return single_place(run.outputs_, run.collective_.dtype, range);
}

void Run::fill_with_nothing(void* self, Range range, std::byte* bucket) {
  auto& run = *static_cast<Run*>(self);
  fill_neutral(run.collective_.dtype, run.collective_.op, bucket, range.count);
}

void Run::start(Backend& backend, uint32_t verdict, int queue, Clock::time_point now) {
  Launch launch;
  launch.tag = tag_;
  launch.verdict = verdict;
  launch.contributors = contributors_;
  if (device_.kind != DeviceKind::cpu) {
    launch.queue = queue;
    start_on_device(launch);
  } else if (region_bytes_ > 0) {
    launch.queue = queue;
    if (entries_.empty())
      launch.edges = {this, &Run::fill_with_nothing, [](void*, Range, const std::byte*, Scale) {},
                      nullptr, nullptr};
    else
      launch.edges = {this, &Run::fill, &Run::drain, &Run::input_of, &Run::output_of};
    launch.windows = windows_;
    if (updates_) launch.update = entries_[0]->update;
    if (!backend.packs_itself(collective_, launch)) {
      region_ = pool_.take(region_bytes_);
      collective_.input = collective_.output = region_->data();
    } else if (!windows_.empty()) {
      updates_ = false;  // the backend applies the update
    }
  } else if (!is_pair(collective_.kind)) {
    // All ranks launch these operations in the same order, so they may use a queue.
    launch.queue = queue;
    const bool is_packed = backend.packs_itself(collective_, launch);
    if (!is_packed) launch.queue = kNoQueue;
    if (members_.empty()) keep_input_apart(is_packed);
  }
  const bool is_gated = is_planned() && slices_.empty() && launch.queue == kNoQueue;
  // The prediction changes from step to step only if the shared memory of the tensors changed.
  if (origin_.kind != Origin::Kind::negotiated && verdict == 0 &&
      predicted_.windows != static_cast<int64_t>(windows_.size())) {
    predicted_.windows = static_cast<int64_t>(windows_.size());
    predicted_.traffic =
        is_in_pair() ? PairOperation::predict(collective_) : backend.predict(collective_, launch);
    if (is_gated) {
      const auto ahead = VerdictGate::predict(backend, tag_);
      predicted_.traffic.messages += ahead.messages;
      predicted_.traffic.bytes += ahead.bytes;
    }
  }
  started_ = now;
  life_.state = RunState::running;
  if (!members_.empty()) pack_members();
  if (is_in_pair()) {
    in_pair_.start(*backend.transport(), collective_, tag_);
    operation_.reset(&in_pair_);
    return;
  }
  if (is_gated) {
    gate_.start(backend, collective_, launch);
    operation_.reset(&gate_);
    return;
  }
  operation_ = backend.start(collective_, launch);
}

// The backend works entirely in stream order, so it gets the needed events, tensors and gates.
void Run::start_on_device(Launch& launch) {
  on_device_.ready.clear();
  on_device_.gates.clear();
  on_device_.gated.clear();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& entry = *entries_[i];
    on_device_.ready.push_back(entry.ready->event());
    const bool is_last = slices_.empty() || slices_[i].begin + slices_[i].count ==
                                                entry.request.signature.shape.count();
    auto* gate = entry.work->only_gate();
    if (gate == nullptr || !is_last) continue;
    on_device_.gates.push_back(gate);
    on_device_.gated.push_back(entry.work.get());
    entry.work->set_on_its_way(false);  // a vetoed use may have set it
  }
  // A reduction in place counts as packed and needs no copy, because only the owner of a part
  // writes it.
  if (region_bytes_ == 0 && members_.empty() && !is_pair(collective_.kind))
    keep_input_apart(/*is_packed=*/true);
  on_device_.launch = {};
  on_device_.launch.ready = on_device_.ready;
  on_device_.launch.gates = on_device_.gates;
  on_device_.launch.agreed = !is_planned();
  on_device_.launch.spans = on_device_.spans;
  launch.device = &on_device_.launch;
  if (region_bytes_ == 0) return;
  if (on_device_.launch.agreed && is_one_tensor()) {
    collective_.input = inputs_[0].data;
    collective_.output = outputs_[0].data;
    return;
  }
  if (entries_.empty()) contribute_nothing();
  region_ = pool_.take(region_bytes_, device_);
  collective_.input = collective_.output = region_->data();
  on_device_.launch.inputs = inputs_;
  on_device_.launch.outputs = outputs_;
  on_device_.launch.prescale = prescale_;
}

bool Run::tell_on_its_way() {
  if (on_device_.gated.empty() || life_.state == RunState::cancelled ||
      !operation_->is_on_its_way())
    return false;
  for (auto* work : on_device_.gated) work->set_on_its_way(true);
  on_device_.gated.clear();
  return true;
}

// Returns whether the backend can work directly on the tensor, because nothing is cast or scaled.
bool Run::is_one_tensor() const {
  return entries_.size() == 1 && prescale_.is_one() && inputs_[0].dtype == collective_.dtype &&
         outputs_[0].dtype == collective_.dtype;
}

void Run::contribute_nothing() {
  const int64_t count = send_counts_[0];
  if (!on_device_.nothing) {
    auto& runtime = device_runtime(device_.kind);
    on_device_.nothing = {static_cast<std::byte*>(runtime.allocate_host(region_bytes_)),
                          [&runtime](std::byte* memory) { runtime.free_host(memory); }};
    fill_neutral(collective_.dtype, collective_.op, on_device_.nothing.get(), count);
  }
  inputs_ = {{on_device_.nothing.get(), collective_.dtype, 0, count}};
  prescale_ = {};
}

void Run::cancel() {
  life_.state = RunState::cancelled;
  operation_->cancel();
}

void Run::doom(int rank) {
  life_.doomed_by = rank;
  life_.state = RunState::doomed;
  operation_->cancel();
}

Clock::time_point Run::wait_for_cause(Clock::time_point now) {
  if (life_.state != RunState::unexplained) {
    life_.state = RunState::unexplained;
    life_.unexplained_since = now;
  }
  return life_.unexplained_since;
}

void Run::finish() {
  if (updates_) {
    const auto& update = *entries_[0]->update;
    for (const auto& piece : outputs_)
      update.apply(update.self, piece.data - update.inputs, piece.count, piece.data);
  }
  operation_.reset();
  if (!members_.empty()) return unpack_members();
  pool_.give_back(std::move(region_), device_);
  for (const auto& piece : outputs_)
    if (output_region_)
      cast(collective_.dtype, output_region_->data(), piece.dtype, piece.data, piece.count);
}

}  // namespace tutti
