#include "tutti/core/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/text.h"
#include "tutti/core/communicator_state.h"

namespace tutti {

namespace {

constexpr int64_t kAlignment = 64;

int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

GradientArena::GradientArena(Communicator& communicator, std::vector<Array> arrays,
                             const ReduceOptions& options)
    : communicator_(communicator), options_(options) {
  auto& state = *communicator.state_;
  int64_t bytes = 0;
  for (const auto& array : arrays)
    bytes += padded(Shape{array.count}.count() * size_of(array.dtype));
  auto& backend = state.engine->backend();
  region_ = backend.allocate(static_cast<size_t>(std::max(bytes, kAlignment)), Device{});
  const bool shared = backend.shares(region_->data(), region_->bytes());
  const int64_t number = state.arenas++;
  name_ = fmt::format("GradientArena {}", number);
  int64_t offset = 0;
  for (auto& array : arrays) {
    if (!index_.emplace(array.name, slots_.size()).second)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("\"{}\" is given twice to a GradientArena; each array needs its own name",
                      array.name))
          .with_tensor(array.name);
    auto& slot = slots_.emplace_back();
    slot.view = TensorView(region_->data() + offset, Shape{array.count}, array.dtype);
    slot.declared = &state.declare(array.name, slot.view.shape(), array.dtype);
    slot.declared->place = number << kArenaShift | offset;
    slot.declared->shared = shared;
    offset += padded(slot.view.bytes());
  }
  std::memset(region_->data(), 0, static_cast<size_t>(bytes));
}

GradientArena::~GradientArena() {
  const std::lock_guard lock(mutex_);
  if (!step_begun_) return;
  // What was not handed over never ends by itself.
  std::vector<WorkCallback> callbacks;
  for (const auto& slot : slots_)
    if (!slot.submitted) work_->finish_part(nullptr, callbacks);
  try {
    Work(work_).wait();
  } catch (const Error&) {
    // Whoever wanted the result would have called wait(); here only the memory matters.
  }
}

GradientArena::Slot& GradientArena::find(std::string_view name) {
  const auto found = index_.find(name);
  if (found != index_.end()) return slots_[found->second];
  std::vector<std::string> names;
  for (const auto& slot : slots_) names.push_back(slot.declared->name);
  const auto nearest = nearest_word(name, names);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\" is no array of this GradientArena{}", name,
                          nearest ? fmt::format("; \"{}\" is meant?", *nearest) : ""))
      .with_tensor(name);
}

TensorView GradientArena::operator[](std::string_view name) const {
  return const_cast<GradientArena*>(this)->find(name).view;
}

void GradientArena::ready(std::string_view name) {
  auto& slot = find(name);
  const std::lock_guard lock(mutex_);
  if (slot.ready)
    throw Error(ErrorCode::duplicate_name,
                fmt::format("\"{}\" was declared ready twice in one step on rank {}; call wait() "
                            "between steps",
                            name, communicator_.rank()))
        .with_rank(communicator_.rank())
        .with_tensor(name);
  slot.ready = true;
  ++ready_;
  unsubmitted_.push_back(static_cast<size_t>(&slot - slots_.data()));
  unsubmitted_bytes_ += slot.view.bytes();
  if (unsubmitted_bytes_ >= kFlushBytes) flush(true);
}

void GradientArena::flush(bool ring) {
  if (unsubmitted_.empty()) return;
  CommunicatorState::Allreduces allreduces(*communicator_.state_, name_, {}, 0, options_);
  if (!step_begun_) allreduces.renew(work_, name_, static_cast<int>(slots_.size()));
  step_begun_ = true;
  for (const size_t index : unsubmitted_)
    allreduces.add(*slots_[index].declared, slots_[index].view, work_);
  allreduces.commit(ring);
  for (const size_t index : unsubmitted_) slots_[index].submitted = true;
  unsubmitted_.clear();
  unsubmitted_bytes_ = 0;
}

void GradientArena::wait() {
  std::shared_ptr<WorkState> work;
  {
    const std::lock_guard lock(mutex_);
    flush(ready_ < slots_.size());
    if (ready_ < slots_.size())
      for (const auto& slot : slots_)
        if (!slot.ready)
          throw Error(ErrorCode::invalid_argument,
                      fmt::format("\"{0}\" was never declared ready in this step on rank {1}; "
                                  "call ready(\"{0}\") and wait() again",
                                  slot.declared->name, communicator_.rank()))
              .with_rank(communicator_.rank())
              .with_tensor(slot.declared->name);
    if (slots_.empty()) return;
    work = work_;
  }
  const auto next_step = [&] {
    work.reset();
    const std::lock_guard lock(mutex_);
    for (auto& slot : slots_) slot.ready = slot.submitted = false;
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
