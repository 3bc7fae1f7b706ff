#include "tutti/adapters/sharded/sharded_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/adapters/exchange/alike.h"
#include "tutti/adapters/sharded/pages.h"
#include "tutti/base/error.h"
#include "tutti/tensor/absent_memory.h"

namespace tutti {

namespace {

TensorView flat(const TensorView& tensor) { return tensor.reshaped(Shape{tensor.count()}); }

}  // namespace

struct ShardedParameters::Slot {
  Whole whole;
  Placement placement;
  Shard shard;
  Work reducing, gathering;
  int gathers = 0;            // number of gathers in this step
  bool is_announced = false;  // gradient_ready() was called in this step
  bool is_whole = true;       // the value is whole
  bool holds_value = true;    // the value is whole, or is being gathered
  bool has_gradient = true;   // the gradient is held
  AbsentMemory absent;        // set unless the slot holds the value
};

void ShardedParameters::check(const std::vector<Whole>& parameters) const {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::invalid_argument, "sharded: " + why).with_rank(comm_.rank());
  };
  if (options_.stage < 1 || options_.stage > 3)
    throw refuse(fmt::format("stage is {}, expected 1, 2 or 3", options_.stage));
  if (options_.ahead < 0)
    throw refuse(fmt::format("ahead is {}, expected 0 or more", options_.ahead));
  if (options_.op != ReduceOp::average && options_.op != ReduceOp::sum)
    throw refuse(fmt::format("op is {}, expected average or sum", to_string(options_.op)));
  for (const auto& parameter : parameters) {
    const auto fits = [](const TensorView& tensor) {
      return (tensor.dtype() == DataType::f32 || tensor.dtype() == DataType::f64) &&
             tensor.device().kind == DeviceKind::cpu && tensor.is_row_major();
    };
    if (!fits(parameter.value) || !fits(parameter.gradient) ||
        parameter.value.dtype() != parameter.gradient.dtype() ||
        parameter.value.count() != parameter.gradient.count())
      throw refuse(fmt::format("\"{}\" is {}{} with a gradient {}{}, expected both f32 or f64, "
                               "equally long, row-major in host memory",
                               parameter.name, to_string(parameter.value.dtype()),
                               parameter.value.shape().to_string(),
                               to_string(parameter.gradient.dtype()),
                               parameter.gradient.shape().to_string()))
          .with_tensor(parameter.name);
  }
}

ShardedParameters::ShardedParameters(Communicator& comm, std::vector<Whole> parameters,
                                     const ShardedOptions& options)
    : comm_(comm), options_(options) {
  check(parameters);
  std::vector<std::string> settings = {
      fmt::format("stage={}", options.stage), fmt::format("op={}", to_string(options.op)),
      fmt::format("wire={}", options.wire ? to_string(*options.wire) : "none"),
      fmt::format("ahead={}", options.ahead)};
  for (const auto& parameter : parameters)
    settings.push_back(fmt::format("\"{}\" {}{}", parameter.name,
                                   to_string(parameter.value.dtype()),
                                   parameter.value.shape().to_string()));
  check_settings_alike(comm, settings, "sharded");
  for (auto& whole : parameters) {
    auto& slot = slots_.emplace_back();
    slot.placement = {whole.value.shape(), Held::divided, comm.size(), comm.rank()};
    const Shape shape{slot.placement.here().count()};
    slot.shard = {whole.name, Tensor(shape, whole.value.dtype()),
                  Tensor(shape, whole.value.dtype())};
    slot.whole = std::move(whole);
    if (!index_.emplace(slot.whole.name, slots_.size() - 1).second)
      throw Error(ErrorCode::duplicate_name,
                  fmt::format("sharded: two parameters are named \"{}\"; give each its own",
                              slot.whole.name))
          .with_tensor(slot.whole.name);
  }
  if (options.broadcast_first) {
    std::vector<Work> works;
    for (const auto& slot : slots_)
      works.push_back(comm.broadcast("sharded first " + slot.whole.name, slot.whole.value));
    for (auto& work : works) work.wait();
  } else {
    std::vector<NamedTensor> values;
    for (const auto& slot : slots_) values.push_back({slot.whole.name, slot.whole.value});
    check_values_alike(comm, values);
  }
  for (auto& slot : slots_) {
    const auto here = slot.placement.here();
    held_.values += slot.shard.value.bytes() + slot.whole.value.bytes();
    held_.gradients += slot.shard.gradient.bytes() + slot.whole.gradient.bytes();
    if (here.count() > 0)
      std::memcpy(slot.shard.value.data(),
                  slot.whole.value.data() + here.begin * size_of(slot.whole.value.dtype()),
                  static_cast<size_t>(slot.shard.value.bytes()));
    if (options.stage == 3) forget_value(slot);
    if (options.stage >= 2) hold_gradient(slot, false);
  }
  most_ = most_before_ = held_;
}

ShardedParameters::~ShardedParameters() {
  for (auto& slot : slots_)
    for (auto* work : {&slot.reducing, &slot.gathering}) {
      try {
        if (*work) work->wait();
      } catch (const Error&) {
        // The step that would have used this result is never taken.
      }
    }
}

std::vector<Shard> ShardedParameters::shards() const {
  std::vector<Shard> all;
  for (const auto& slot : slots_) all.push_back(slot.shard);
  return all;
}

ShardedParameters::Slot& ShardedParameters::slot_of(std::string_view name) {
  const auto found = index_.find(name);
  if (found == index_.end())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" is not a parameter of the sharded optimizer", name))
        .with_tensor(name);
  return slots_[found->second];
}

Placement ShardedParameters::placement_of(std::string_view name) const {
  return const_cast<ShardedParameters*>(this)->slot_of(name).placement;
}

// --- gradients ---

void ShardedParameters::gradient_ready(std::string_view name) {
  const std::lock_guard lock(mutex_);
  auto& slot = slot_of(name);
  if (slot.is_announced)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" got another gradient before step(); call step() between "
                            "backward passes",
                            name))
        .with_rank(comm_.rank())
        .with_tensor(name);
  set_out(slot);
  // Releases the gradients that have been reduced meanwhile. It does not wait for any, because
  // ranks may announce them in different orders.
  for (auto& other : slots_)
    if (other.reducing && other.reducing.done()) collect(other);
}

void ShardedParameters::set_out(Slot& slot) {
  slot.is_announced = true;
  hold_gradient(slot, true);
  ReduceOptions reduce;
  reduce.op = options_.op;
  reduce.wire = options_.wire;
  slot.reducing =
      comm_.reduce_scatter("sharded gradient " + slot.whole.name, flat(slot.whole.gradient),
                           slot.shard.gradient.view(), reduce);
}

// Waits for the shard's gradient. The stage decides whether the trainer's memory is then released.
void ShardedParameters::collect(Slot& slot) {
  auto work = std::move(slot.reducing);
  slot.reducing = Work();
  work.wait();
  if (options_.stage >= 2) hold_gradient(slot, false);
}

// Counts the gradient's memory, and releases it if it is no longer held.
void ShardedParameters::hold_gradient(Slot& slot, bool holds) {
  const int64_t change = (holds ? 1 : 0) - (slot.has_gradient ? 1 : 0);
  held_.gradients += change * slot.whole.gradient.bytes();
  most_.gradients = std::max(most_.gradients, held_.gradients);
  slot.has_gradient = holds;
  if (!holds) drop_contents(slot.whole.gradient);
}

void ShardedParameters::wait_for_gradients() {
  const std::lock_guard lock(mutex_);
  for (auto& slot : slots_)
    if (!slot.is_announced) set_out(slot);
  std::optional<Error> failed;
  for (auto& slot : slots_) {
    try {
      if (slot.reducing) collect(slot);
    } catch (const Error& error) {
      if (!failed) failed = error;
    }
  }
  if (failed) throw Error(*failed);
}

void ShardedParameters::zero_gradients() {
  const std::lock_guard lock(mutex_);
  for (auto& slot : slots_) {
    if (options_.stage >= 2)
      hold_gradient(slot, false);
    else
      std::memset(slot.whole.gradient.data(), 0, static_cast<size_t>(slot.whole.gradient.bytes()));
  }
}

// --- values ---

void ShardedParameters::hold_value(Slot& slot, bool holds) {
  const int64_t change = (holds ? 1 : 0) - (slot.holds_value ? 1 : 0);
  held_.values += change * slot.whole.value.bytes();
  most_.values = std::max(most_.values, held_.values);
  slot.holds_value = holds;
  if (change != 0) slot.absent = holds ? AbsentMemory() : AbsentMemory(slot.whole.value);
  if (!holds) drop_contents(slot.whole.value);
}

void ShardedParameters::start_gather(Slot& slot) {
  hold_value(slot, true);
  // Each name occurs once per step, so that repeated steps are recognized.
  const auto name = slot.gathers++ == 0
                        ? fmt::format("sharded value {}", slot.whole.name)
                        : fmt::format("sharded value {} again {}", slot.whole.name, slot.gathers);
  slot.gathering = comm_.allgather(name, slot.shard.value, flat(slot.whole.value));
}

void ShardedParameters::finish_gather(Slot& slot) {
  auto work = std::move(slot.gathering);
  slot.gathering = Work();
  work.wait();
  slot.is_whole = true;
}

void ShardedParameters::forget_value(Slot& slot) {
  hold_value(slot, false);
  slot.is_whole = false;
}

void ShardedParameters::publish() {
  const std::lock_guard lock(mutex_);
  for (auto& slot : slots_) {
    slot.is_announced = false;
    slot.gathers = 0;
  }
  most_before_ = std::exchange(most_, held_);
  if (options_.stage == 3) {
    for (auto& slot : slots_) {
      if (slot.gathering) finish_gather(slot);
      if (slot.is_whole) forget_value(slot);
    }
    most_ = held_;
    all_are_needed_ = false;
    needed_before_ = std::move(needed_);
    needed_.clear();
    return;
  }
  for (auto& slot : slots_) start_gather(slot);
  for (auto& slot : slots_) finish_gather(slot);
}

void ShardedParameters::need(std::string_view name) {
  if (options_.stage < 3) return;
  auto& slot = slot_of(name);
  if (!slot.is_whole && !slot.gathering) start_gather(slot);
  needed_.push_back(static_cast<size_t>(&slot - slots_.data()));
  prefetch();
  if (slot.gathering) finish_gather(slot);
}

// Starts to gather the next parameters in the order of the last step, as long as this step has
// followed it.
void ShardedParameters::prefetch() {
  const auto at = needed_.size();
  if (at > needed_before_.size() || needed_before_[at - 1] != needed_[at - 1]) return;
  const auto end = std::min(needed_before_.size(), at + static_cast<size_t>(options_.ahead));
  for (size_t i = at; i < end; ++i) {
    auto& next = slots_[needed_before_[i]];
    if (!next.is_whole && !next.gathering) start_gather(next);
  }
}

void ShardedParameters::done(std::string_view name) {
  if (options_.stage < 3 || all_are_needed_) return;
  auto& slot = slot_of(name);
  const auto index = static_cast<size_t>(&slot - slots_.data());
  // Keeps a value that is needed again soon. The last layer, for example, needs it forward and then
  // backward.
  const auto at = std::min(needed_.size(), needed_before_.size());
  const auto end = std::min(needed_before_.size(), at + static_cast<size_t>(options_.ahead) + 1);
  const auto* next = needed_before_.data();
  if (std::find(next + at, next + end, index) != next + end) return;
  if (slot.gathering) finish_gather(slot);
  if (slot.is_whole) forget_value(slot);
}

void ShardedParameters::need_all() {
  if (options_.stage < 3) return;
  all_are_needed_ = true;
  for (auto& slot : slots_)
    if (!slot.is_whole && !slot.gathering) start_gather(slot);
  for (auto& slot : slots_)
    if (slot.gathering) finish_gather(slot);
}

std::shared_ptr<const void> ShardedParameters::take_absent() {
  auto all = std::make_shared<std::vector<AbsentMemory>>();
  for (auto& slot : slots_) all->push_back(std::move(slot.absent));
  return all;
}

ShardedMemory ShardedParameters::memory() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

ShardedMemory ShardedParameters::peak_memory() const {
  const std::lock_guard lock(mutex_);
  return most_before_;
}

}  // namespace tutti
