#include "tutti/core/arena.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr int64_t kAlignment = 64;

int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

GradientArena::GradientArena(Communicator& communicator, std::vector<Array> arrays,
                             const ReduceOptions& options)
    : communicator_(communicator), options_(options) {
  int64_t bytes = 0;
  for (const auto& array : arrays)
    bytes += padded(Shape{array.count}.count() * size_of(array.dtype));
  memory_ = Tensor(Shape{bytes}, DataType::u8);
  std::byte* at = memory_.data();
  for (auto& array : arrays) {
    if (!index_.emplace(array.name, slots_.size()).second)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("\"{}\" is given twice to a GradientArena; each array needs its own name",
                      array.name))
          .with_tensor(array.name);
    slots_.push_back({std::move(array.name), TensorView(at, Shape{array.count}, array.dtype), {}});
    at += padded(slots_.back().view.bytes());
  }
}

GradientArena::~GradientArena() {
  for (auto& slot : slots_) {
    try {
      if (slot.work) slot.work.wait();
    } catch (const Error&) {
      // Whoever wanted the result would have called wait(); here only the memory matters.
    }
  }
}

GradientArena::Slot& GradientArena::find(std::string_view name) {
  const auto found = index_.find(std::string(name));
  if (found != index_.end()) return slots_[found->second];
  std::vector<std::string> names;
  for (const auto& slot : slots_) names.push_back(slot.name);
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
  if (slot.work)
    throw Error(ErrorCode::duplicate_name,
                fmt::format("\"{}\" was declared ready twice in one step on rank {}; call wait() "
                            "between steps",
                            name, communicator_.rank()))
        .with_rank(communicator_.rank())
        .with_tensor(name);
  slot.work = communicator_.allreduce(slot.name, slot.view, options_);
}

void GradientArena::wait() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& slot : slots_)
      if (!slot.work)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("\"{}\" was never declared ready in this step on rank {}; call "
                                "ready(\"{}\") and wait() again",
                                slot.name, communicator_.rank(), slot.name))
            .with_rank(communicator_.rank())
            .with_tensor(slot.name);
  }
  std::optional<Error> first;
  for (auto& slot : slots_) {
    try {
      slot.work.wait();
    } catch (const Error& error) {
      if (!first) first = error;
    }
    slot.work = Work();
  }
  if (first) throw Error(*first);
}

}  // namespace tutti
