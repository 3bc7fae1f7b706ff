#include "tutti/core/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/text.h"
#include "tutti/core/life/communicator_state.h"

namespace tutti {

namespace {

constexpr int64_t kAlignment = 64;

int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

GradientArena::GradientArena(Communicator& communicator, std::vector<Array> arrays,
                             const ReduceOptions& options)
    : GradientArena(communicator, std::move(arrays), options, nullptr, nullptr) {}

GradientArena::GradientArena(Communicator& communicator, std::vector<Array> arrays,
                             const ReduceOptions& options, Apply apply, void* self)
    : communicator_(communicator), options_(options) {
  auto& state = *communicator.state_;
  int64_t bytes = 0;
  for (const auto& array : arrays)
    bytes += padded(Shape{array.count}.count() * size_of(array.dtype));
  auto& backend = state.engine->backend();
  region_ = backend.allocate(static_cast<size_t>(std::max(bytes, kAlignment)), Device{});
  number_ = state.arenas++;
  name_ = fmt::format("GradientArena {}", number_);
  // Touched now, so that the first step finds its pages.
  std::memset(region_->data(), 0, region_->bytes());
  if (apply != nullptr) {
    twins_ = backend.allocate(region_->bytes(), Device{});
    std::memset(twins_->data(), 0, twins_->bytes());
    update_ = std::make_unique<FusedUpdate>(
        FusedUpdate{self, region_->data(), twins_->data(), bytes, apply});
  }
  int64_t offset = 0;
  slots_.reserve(arrays.size());
  for (auto& array : arrays) {
    auto& slot = slots_.emplace_back();
    slot.name = std::move(array.name);
    slot.view = TensorView(region_->data() + offset, Shape{array.count}, array.dtype);
    slot.follower = slots_.size() % arrays.size();
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

// Blocks are the same on all ranks, because the arrays are. Padding belongs to them: it is zero.
void GradientArena::make_blocks(bool shared) {
  for (size_t first = 0; first < slots_.size();) {
    const DataType dtype = slots_[first].view.dtype();
    int64_t bytes = 0;
    size_t end = first;
    const auto fits = [&](const Slot& slot) {
      return end == first ||
             (slot.view.dtype() == dtype && bytes + slot.view.bytes() <= kBlockBytes);
    };
    for (; end < slots_.size() && fits(slots_[end]); ++end) {
      slots_[end].block = blocks_.size();
      bytes += padded(slots_[end].view.bytes());
    }
    const auto& last = slots_[end - 1];
    auto* const begin = slots_[first].view.data();
    const int64_t count = (last.view.data() - begin) / size_of(dtype) + last.view.count();
    auto& block = blocks_.emplace_back();
    block.view = TensorView(begin, Shape{count}, dtype);
    block.arrays = block.missing = static_cast<int>(end - first);
    const auto name = end - first == 1
                          ? fmt::format("{}: {}", name_, last.name)
                          : fmt::format("{}: {} to {}", name_, slots_[first].name, last.name);
    block.declared = &communicator_.state_->declare(name, block.view.shape(), dtype);
    block.declared->place = number_ << kArenaShift | (begin - region_->data());
    block.declared->shared = shared;
    block.declared->update = update_.get();
    first = end;
  }
}

GradientArena::~GradientArena() {
  const std::lock_guard lock(mutex_);
  if (!step_begun_) return;
  // What was not handed over never ends by itself.
  std::vector<WorkCallback> callbacks;
  for (const auto& block : blocks_)
    if (!block.submitted) work_->finish_part(nullptr, callbacks);
  try {
    Work(work_).wait();
  } catch (const Error&) {
    // Whoever wanted the result would have called wait(); here only the memory matters.
  }
}

size_t GradientArena::look_up(std::string_view name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& slot : slots_) names.push_back(slot.name);
  const auto nearest = nearest_word(name, names);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\" is no array of this GradientArena{}", name,
                          nearest ? fmt::format("; \"{}\" is meant?", *nearest) : ""))
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
  return TensorView(twins_->data() + (view.data() - region_->data()), view.shape(), view.dtype());
}

std::byte* GradientArena::values() const { return twins_ ? twins_->data() : nullptr; }
int64_t GradientArena::bytes() const { return static_cast<int64_t>(region_->bytes()); }

void GradientArena::ready(std::string_view name) {
  const std::lock_guard lock(mutex_);
  // Steps are alike, so the next array is most often the one that came next before.
  size_t index = slots_.empty() ? 0 : slots_[last_].follower;
  if (slots_.empty() || slots_[index].name != name) {
    index = look_up(name);
    slots_[last_].follower = index;
  }
  auto& slot = slots_[index];
  if (slot.ready)
    throw Error(ErrorCode::duplicate_name,
                fmt::format("\"{}\" was declared ready twice in one step on rank {}; call wait() "
                            "between steps",
                            name, communicator_.rank()))
        .with_rank(communicator_.rank())
        .with_tensor(name);
  slot.ready = true;
  last_ = index;
  ++ready_;
  if (--blocks_[slot.block].missing > 0) return;
  complete_.push_back(slot.block);
  flush(true);
}

void GradientArena::flush(bool ring) {
  if (complete_.empty()) return;
  CommunicatorState::Allreduces allreduces(*communicator_.state_, name_, {}, 0, options_);
  if (!step_begun_) allreduces.renew(work_, last_work_, name_, static_cast<int>(blocks_.size()));
  step_begun_ = true;
  for (const size_t index : complete_)
    allreduces.add(*blocks_[index].declared, blocks_[index].view, work_);
  allreduces.commit(ring);
  for (const size_t index : complete_) blocks_[index].submitted = true;
  complete_.clear();
}

void GradientArena::wait() {
  std::shared_ptr<WorkState> work;
  {
    const std::lock_guard lock(mutex_);
    flush(true);
    if (ready_ < slots_.size())
      for (const auto& slot : slots_)
        if (!slot.ready)
          throw Error(ErrorCode::invalid_argument,
                      fmt::format("\"{0}\" was never declared ready in this step on rank {1}; "
                                  "call ready(\"{0}\") and wait() again",
                                  slot.name, communicator_.rank()))
              .with_rank(communicator_.rank())
              .with_tensor(slot.name);
    if (slots_.empty()) return;
    work = work_;
  }
  const auto next_step = [&] {
    work.reset();
    const std::lock_guard lock(mutex_);
    for (auto& slot : slots_) slot.ready = false;
    for (auto& block : blocks_) {
      block.missing = block.arrays;
      block.submitted = false;
    }
    ready_ = 0;
    step_begun_ = false;
  };
  try {
    work->wait(Deadline::never());
  } catch (const Error&) {
    next_step();
    throw;
  }
  next_step();
}

}  // namespace tutti
