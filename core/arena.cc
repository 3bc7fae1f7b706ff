#include "tutti/core/arena.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/text.h"
#include "tutti/core/calls/communicator_state.h"

namespace tutti {

namespace {

constexpr int64_t kAlignment = 64;

// Reduces the flags of the arrays that may be left out: a flag becomes 1 if any rank has the array.
const ReduceOptions kOfAnyRank{.op = ReduceOp::max};

int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t bytes_of(const GradientArena::Array& array) {
  constexpr int64_t kMost = int64_t{1} << kArenaShift;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(array.shape.count(), size_of(array.dtype), &bytes)) return kMost;
  return std::min(bytes, kMost);
}

// Throws for an error in an array's description that this rank can see without the other ranks.
void check(const GradientArena::Array& array, const ReduceOptions& options, bool updates) {
  const auto what =
      fmt::format("{}{} of a GradientArena", to_string(array.dtype), array.shape.to_string());
  if (!array.strides.empty() && !array.shape.is_dense(array.strides))
    throw refused(array.name,
                  fmt::format("{} has strides [{}], which leave gaps or overlap; give those of a "
                              "dense layout, like [{}]",
                              what, fmt::join(array.strides, ","),
                              fmt::join(array.shape.row_major_strides(), ",")));
  if (!array.may_be_left_out) return;
  if (updates)
    throw refused(array.name, fmt::format("{} with an update cannot be left out of a step", what));
  if (options.op != ReduceOp::sum && options.op != ReduceOp::average)
    throw refused(
        array.name,
        fmt::format(
            "{} takes part with zeros if it is left out, which sum and average allow, but not {}",
            what, to_string(options.op)));
}

void fill_with_zeros(Device device, Region& region) {
  if (device == Device{}) {
    std::memset(region.data(), 0, region.bytes());
    return;
  }
  auto& runtime = device_runtime(device.kind);
  const auto stream = runtime.create_stream(device);
  const auto bytes = static_cast<int64_t>(region.bytes());
  runtime.pack({region.data(), DataType::u8, bytes, 0, 0, false}, {}, {}, false, stream);
  runtime.synchronize(stream);
  runtime.destroy_stream(stream);
}

}  // namespace

void GradientArena::check_device(const std::vector<Array>& arrays, bool updates) {
  if (!arrays.empty()) device_ = arrays[0].device;
  const auto& capabilities = communicator_.state_->capabilities;
  const auto is_served = [&](Device device) {
    return std::any_of(capabilities.devices.begin(), capabilities.devices.end(),
                       [&](const auto& service) { return service.device == device; });
  };
  for (const auto& array : arrays) {
    const auto what =
        fmt::format("{}{} of a GradientArena", to_string(array.dtype), array.shape.to_string());
    if (array.device != device_)
      throw refused(
          array.name,
          fmt::format("{} is to be on {}, but \"{}\" on {}; make an arena for each device", what,
                      to_string(array.device), arrays[0].name, to_string(device_)));
    if (device_ == Device{}) continue;
    if (!is_served(device_))
      throw refused(
          array.name,
          fmt::format("{} is to be on {}, but with {} an arena is in host memory; use backend peer "
                      "or nccl, whose arenas are on their own device",
                      what, to_string(device_),
                      communicator_.options().mixed_devices ? "TUTTI_MIXED_DEVICES"
                                                            : "backend " + capabilities.name));
    if (updates || array.may_be_left_out)
      throw refused(array.name,
                    fmt::format("{} is on {}, where an arena can only reduce gradients: it cannot "
                                "update parameters, and no array can be left out of a step",
                                what, to_string(device_)));
  }
}

GradientArena::GradientArena(Communicator& communicator, std::vector<Array> arrays,
                             const ReduceOptions& options)
    : GradientArena(communicator, std::move(arrays), options, nullptr, nullptr) {}

GradientArena::GradientArena(Communicator& communicator, std::vector<Array> arrays,
                             const ReduceOptions& options, Apply apply, void* self)
    : communicator_(communicator), options_(options) {
  auto& state = *communicator.state_;
  state.engine->check_not_forked("GradientArena");
  check_device(arrays, apply != nullptr);
  int64_t bytes = 0, flags = 0;
  for (const auto& array : arrays) {
    check(array, options, apply != nullptr);
    bytes += padded(bytes_of(array));
    if (bytes >= int64_t{1} << kArenaShift)
      throw refused(array.name,
                    "with it the arrays of a GradientArena exceed 16 TiB; make two arenas");
    flags += array.may_be_left_out;
  }
  const int64_t flags_begin = bytes;
  bytes += padded(flags);
  auto& backend = state.engine->backend();
  region_.reset(
      backend.allocate(static_cast<size_t>(std::max(bytes, kAlignment)), device_).release());
  number_ = state.arenas++;
  name_ = fmt::format("GradientArena {}", number_);
  // Writing zeros makes the kernel map the pages now, and not in the first step.
  fill_with_zeros(device_, *region_);
  if (apply != nullptr) {
    twins_.reset(backend.allocate(region_->bytes(), Device{}).release());
    std::memset(twins_->data(), 0, twins_->bytes());
    update_ = std::make_unique<FusedUpdate>(
        FusedUpdate{self, region_->data(), twins_->data(), bytes, apply});
  }
  int64_t offset = 0;
  slots_.reserve(arrays.size());
  for (auto& array : arrays) {
    auto& slot = slots_.emplace_back();
    slot.name = std::move(array.name);
    slot.view = TensorView(region_->data() + offset, array.shape, array.dtype, device_);
    if (!array.strides.empty() && !array.shape.is_row_major(array.strides)) {
      slot.strides = std::move(array.strides);
      slot.view = slot.view.with_strides(slot.strides.data());
    }
    if (array.may_be_left_out) slot.flag = static_cast<int32_t>(flags_.count());
    if (array.may_be_left_out)
      flags_ = TensorView(region_->data() + flags_begin, Shape{slot.flag + 1}, DataType::u8);
    slot.follower = static_cast<uint32_t>(slots_.size() % arrays.size());
    offset += padded(slot.view.bytes());
    if (!index_.emplace(slot.name, slots_.size() - 1).second)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("\"{}\" is given twice to a GradientArena; each array needs its own name",
                      slot.name))
          .with_tensor(slot.name);
  }
  make_blocks(backend.shares(region_->data(), region_->bytes()));
}

// All ranks have the same arrays, so they form the same blocks. The padding after an array belongs
// to its block and is zero.
void GradientArena::make_blocks(bool shared) {
  for (size_t first = 0; first < slots_.size();) {
    const DataType dtype = slots_[first].view.dtype();
    int64_t bytes = 0;
    size_t end = first;
    uint64_t layout = 1;
    const auto fits = [&](const Slot& slot) {
      return end == first ||
             (slot.view.dtype() == dtype && bytes + slot.view.bytes() <= kBlockBytes);
    };
    for (; end < slots_.size() && fits(slots_[end]); ++end) {
      slots_[end].block = static_cast<uint32_t>(blocks_.size());
      bytes += padded(slots_[end].view.bytes());
      layout = digest(slots_[end], layout);
    }
    const auto& last = slots_[end - 1];
    auto* const begin = slots_[first].view.data();
    // On a device a block includes the padding up to the next block. So several adjacent blocks are
    // one contiguous range, and a bucket of these blocks needs no packing.
    const int64_t length = device_ == Device{} ? last.view.bytes() : padded(last.view.bytes());
    const int64_t count = (last.view.data() - begin + length) / size_of(dtype);
    const auto name = end - first == 1
                          ? fmt::format("{}: {}", name_, last.name)
                          : fmt::format("{}: {} to {}", name_, slots_[first].name, last.name);
    auto& block = add_block(name, TensorView(begin, Shape{count}, dtype, device_), layout, shared);
    block.arrays = block.missing = static_cast<int>(end - first);
    block.declared->update = update_.get();
    first = end;
  }
  if (flags_.count() > 0)
    add_block(fmt::format("{}: which arrays were left out", name_), flags_, 1, shared);
}

GradientArena::Block& GradientArena::add_block(const std::string& name, const TensorView& view,
                                               uint64_t layout, bool shared) {
  auto& block = blocks_.emplace_back();
  block.view = view;
  block.declared =
      std::make_unique<DeclaredTensor>(communicator_.state_, name, view.shape(), view.dtype());
  block.declared->place = number_ << kArenaShift | (view.data() - region_->data());
  block.declared->layout = layout;
  block.declared->shared = shared;
  return block;
}

// Returns a hash of the properties that must match on all ranks, apart from offset, size and dtype.
uint64_t GradientArena::digest(const Slot& slot, uint64_t before) {
  const auto text = fmt::format("{} {} [{}] {}", slot.name, slot.view.shape().to_string(),
                                fmt::join(slot.view.strides(), ","), slot.flag >= 0);
  return std::max<uint64_t>(1, hash_text(text, before));
}

GradientArena::~GradientArena() {
  // In a fork the open step and the lock belong to the parent process.
  if (fork_guard_.forked()) return;
  const std::lock_guard lock(mutex_);
  for (auto& work : works_there_) try {
      work.wait();
    } catch (const Error&) {
      // The error is dropped: a thread that wants the result calls wait(). The destructor only
      // waits until the memory is unused.
    }
  if (!step_begun_) return;
  // Ends the parts of the Work whose blocks were not submitted, because nothing else would.
  for (const auto& block : blocks_)
    if (!block.submitted) communicator_.state_->engine->end_part(*work_, {});
  try {
    Work(work_).wait();
  } catch (const Error&) {
    // The error is dropped: a thread that wants the result calls wait(). The destructor only waits
    // until the memory is unused.
  }
}

// Must be called before mutex_ is taken, because a fork may have inherited mutex_ locked.
void GradientArena::check_not_forked(std::string_view name) const {
  if (fork_guard_.forked()) communicator_.state_->engine->check_not_forked(name);
}

size_t GradientArena::look_up(std::string_view name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& slot : slots_) names.push_back(slot.name);
  const auto nearest = nearest_word(name, names);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\" is not an array of this GradientArena{}", name,
                          nearest ? fmt::format("; did you mean \"{}\"?", *nearest) : ""))
      .with_tensor(name);
}

TensorView GradientArena::operator[](std::string_view name) const {
  return slots_[look_up(name)].view;
}

TensorView GradientArena::value(std::string_view name) const {
  const auto& view = slots_[look_up(name)].view;
  if (!twins_)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" has no value in {}, which only reduces gradients", name, name_))
        .with_tensor(name);
  return view.at(twins_->data() + (view.data() - region_->data()));
}

std::byte* GradientArena::values() const { return twins_ ? twins_->data() : nullptr; }
int64_t GradientArena::bytes() const { return static_cast<int64_t>(region_->bytes()); }

// Most steps declare the arrays in the same order. So this first tries the array that followed the
// last declared one in the previous step.
size_t GradientArena::look_up_next(std::string_view name) {
  size_t index = slots_.empty() ? 0 : slots_[last_].follower;
  if (slots_.empty() || slots_[index].name != name) {
    index = look_up(name);
    slots_[last_].follower = static_cast<uint32_t>(index);
  }
  if (slots_[index].step == step_)
    throw Error(ErrorCode::duplicate_name,
                fmt::format("\"{}\" was declared ready or left out twice in one step on rank {}; "
                            "call wait() between steps",
                            name, communicator_.rank()))
        .with_rank(communicator_.rank())
        .with_tensor(name);
  return index;
}

void GradientArena::ready(std::string_view name, StreamRef stream) {
  check_not_forked(name);
  const std::lock_guard lock(mutex_);
  const size_t index = look_up_next(name);
  if (device_ != Device{}) follow(blocks_[slots_[index].block], stream);
  if (const auto& slot = slots_[index]; slot.flag >= 0) flags_.as<uint8_t>()[slot.flag] = 1;
  count_in(index);
}

void GradientArena::leave_out(std::string_view name) {
  check_not_forked(name);
  const std::lock_guard lock(mutex_);
  const size_t index = look_up_next(name);
  const auto& slot = slots_[index];
  if (slot.flag < 0)
    throw refused(
        name, fmt::format("rank {} leaves it out of a step of {}, but it was not described as an "
                          "array that may be left out: set Array::may_be_left_out on all ranks",
                          communicator_.rank(), name_))
        .with_rank(communicator_.rank());
  if (slot.view.bytes() > 0)
    std::memset(slot.view.data(), 0, static_cast<size_t>(slot.view.bytes()));
  flags_.as<uint8_t>()[slot.flag] = 0;
  count_in(index);
}

bool GradientArena::used(std::string_view name) const {
  check_not_forked(name);
  const std::lock_guard lock(mutex_);
  return slots_[look_up(name)].used;
}

void GradientArena::count_in(size_t index) {
  auto& slot = slots_[index];
  slot.step = step_;
  last_ = index;
  ++ready_;
  if (--blocks_[slot.block].missing > 0) return;
  complete_.push_back(slot.block);
  flush(true);
}

// Makes `stream` wait for the stream of the block's earlier arrays. The block's memory is then
// complete on `stream` alone.
void GradientArena::follow(Block& block, StreamRef stream) {
  if (block.missing < block.arrays && !(block.stream == stream)) {
    auto& runtime = device_runtime(device_.kind);
    void* const event = runtime.create_event(device_);
    runtime.record(event, block.stream);
    runtime.wait_event(stream, event);
    runtime.destroy_event(event);
  }
  block.stream = stream;
}

void GradientArena::flush_there() {
  for (const size_t index : complete_) {
    auto& block = blocks_[index];
    const TensorView view(block.view.data(), block.view.shape(), block.view.dtype(), device_,
                          block.stream);
    works_there_.push_back(communicator_.allreduce(block.declared->name, view, options_));
  }
  complete_.clear();
}

void GradientArena::flush(bool ring) {
  if (device_ != Device{}) return flush_there();
  if (!complete_.empty()) {
    CommunicatorState::Batch batch(*communicator_.state_, name_);
    if (!step_begun_) batch.renew(work_, last_work_, name_, static_cast<int>(blocks_.size()));
    step_begun_ = true;
    for (const size_t index : complete_) {
      const auto& view = blocks_[index].view;
      batch.add(*blocks_[index].declared, {CollectiveKind::allreduce, &view, &view, &options_},
                work_);
    }
    batch.commit(ring);
    for (const size_t index : complete_) blocks_[index].submitted = true;
    complete_.clear();
  }
  if (flags_.count() == 0 || ready_ < slots_.size() || blocks_.back().submitted) return;
  CommunicatorState::Batch batch(*communicator_.state_, name_);
  batch.add(*blocks_.back().declared, {CollectiveKind::allreduce, &flags_, &flags_, &kOfAnyRank},
            work_);
  batch.commit(ring);
  blocks_.back().submitted = true;
}

void GradientArena::begin_step() {
  if (flags_.count() > 0)
    for (auto& slot : slots_)
      if (slot.flag >= 0) slot.used = flags_.as<uint8_t>()[slot.flag] != 0;
  for (auto& block : blocks_) {
    block.missing = block.arrays;
    block.submitted = false;
  }
  ++step_;
  ready_ = 0;
  step_begun_ = false;
}

// Waits for all operations before it throws the first error, because they use the arena's memory.
void GradientArena::wait_there(Deadline deadline) {
  std::vector<Work> works;
  {
    const std::lock_guard lock(mutex_);
    works = works_there_;
  }
  std::exception_ptr first;
  for (auto& work : works) {
    try {
      work.wait(deadline);
    } catch (const Error&) {
      if (!work.done()) throw;
      if (!first) first = std::current_exception();
    }
  }
  {
    const std::lock_guard lock(mutex_);
    works_there_.clear();
    begin_step();
  }
  if (first) std::rethrow_exception(first);
}

bool GradientArena::step_begun() const {
  const std::lock_guard lock(mutex_);
  return step_begun_ || !works_there_.empty();
}

void GradientArena::wait() { wait(Deadline::never()); }

void GradientArena::wait(Deadline deadline) {
  check_not_forked(name_);
  std::shared_ptr<WorkState> work;
  {
    const std::lock_guard lock(mutex_);
    flush(true);
    if (ready_ < slots_.size())
      for (const auto& slot : slots_)
        if (slot.step != step_)
          throw Error(
              ErrorCode::invalid_argument,
              fmt::format(
                  "\"{0}\" was never declared ready in this step on rank {1}; "
                  "call ready(\"{0}\") and wait() again{2}",
                  slot.name, communicator_.rank(),
                  slot.flag >= 0 ? ", or leave_out() if this rank has no gradient for it" : ""))
              .with_rank(communicator_.rank())
              .with_tensor(slot.name);
    if (slots_.empty()) return;
    work = work_;
  }
  if (device_ != Device{}) return wait_there(deadline);
  const auto next_step = [&] {
    work.reset();
    const std::lock_guard lock(mutex_);
    begin_step();
  };
  try {
    work->wait(deadline);
  } catch (const Error&) {
    if (!work->done()) throw;
    next_step();
    throw;
  }
  next_step();
}

}  // namespace tutti
