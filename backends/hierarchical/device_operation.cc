#include "tutti/backends/hierarchical/device_operation.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>

namespace tutti {

namespace {

// The tags of operations count up from 1. A call within an operation has the operation's tag, with
// the number of the call in the bits from kCallShift on.
constexpr int kCallShift = 48;
constexpr double kDrainSeconds = 3;

}  // namespace

std::unique_ptr<LevelsScratch> LevelsPlace::take(size_t bytes, size_t device_bytes) {
  const auto wanted = std::bit_ceil(std::max<size_t>(bytes, 4096));
  const auto needs_device = device_bytes == 0 ? 0 : std::bit_ceil(device_bytes);
  const auto fitting = std::find_if(free.begin(), free.end(), [&](const auto& one) {
    return one->bytes == wanted && one->device_bytes == needs_device;
  });
  if (fitting != free.end()) {
    auto found = std::move(*fitting);
    free.erase(fitting);
    ++found->turn;
    return found;
  }
  auto made = std::make_unique<LevelsScratch>();
  made->pinned = static_cast<std::byte*>(runtime->allocate_host(wanted));
  made->bytes = wanted;
  if (needs_device > 0) made->device = inner->allocate(needs_device, device);
  made->device_bytes = needs_device;
  made->word = runtime->take_word();
  made->event = runtime->create_event(device);
  return made;
}

LevelsOperation::LevelsOperation(LevelsPlace& place, const LevelsStreams& streams,
                                 const Collective& collective, const Launch& launch)
    : place_(place),
      streams_(streams),
      collective_(collective),
      device_(*launch.device),
      tag_(launch.tag),
      contributors_(launch.contributors > 0 ? launch.contributors : place.size),
      is_bucket_(!device_.inputs.empty() || !device_.outputs.empty()),
      plan_(plan_levels(collective, place.grid)) {
  if (collective_.op == ReduceOp::average && sums_of(collective) == Sums::scaled) {
    // Each level averages over its own ranks. The mean of the hosts' means is the mean over all
    // ranks, because all hosts have the same number of ranks.
    collective_.scale.factor *= static_cast<double>(place.size) / contributors_;
  } else if (collective_.op == ReduceOp::average) {
    collective_.op = ReduceOp::sum;
    if (reduces(collective_.kind)) collective_.scale.divisor *= contributors_;
  }
  scratch_ = place_.take(bytes_of(plan_.pinned), bytes_of(plan_.scratch));
  if (device_.agreed) {
    pack();
  } else {
    Launch agreement;
    agreement.tag = tag_;
    agreement.verdict = launch.verdict;
    part_ = place_.control->start({}, agreement);
  }
  place_.running.push_back(this);
}

LevelsOperation::~LevelsOperation() {
  std::erase(place_.running, this);
  part_.reset();
  if (!is_on_streams_ || has_passed(kUnpacked)) {
    place_.free.push_back(std::move(scratch_));
    return;
  }
  // When this returns, the caller frees the operation's memory, so no stream may use it any more.
  // The packing may wait for a stream of the user. That stream may wait until an earlier operation
  // opens its gate. So the gates of all operations are opened.
  if (!place_.breaking_off) place_.breaking_off = Deadline::after(kDrainSeconds);
  for (auto* operation : place_.running) operation->open_gates();
  open_gates();
  auto& runtime = *place_.runtime;
  for (const auto stream : {streams_.packing, streams_.copying}) {
    runtime.record(scratch_->event, stream);
    while (!runtime.reached(scratch_->event)) {
      if (place_.breaking_off->passed()) {
        // The device still uses the scratch memory, so it is never freed.
        static_cast<void>(scratch_.release());
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  place_.free.push_back(std::move(scratch_));
}

void LevelsOperation::open_gates() {
  for (auto* gate : device_.gates) std::atomic_ref(*gate).store(1, std::memory_order_release);
}

bool LevelsOperation::has_passed(Mark which) const {
  return std::atomic_ref(*scratch_->word).load(std::memory_order_acquire) >= mark(which);
}

void LevelsOperation::tell(StreamRef stream, Mark which) {
  place_.runtime->write_word(stream, scratch_->word, mark(which));
  place_.runtime->host_function(stream, [bell = place_.bell] { bell->ring(); });
}

bool LevelsOperation::end(OperationState state) {
  stage_ = Stage::over;
  state_ = is_cancelled_ ? OperationState::failed : state;
  part_.reset();
  return true;
}

OperationState LevelsOperation::advance() {
  // After an abort, a command on a stream may never finish. So this does not wait for the streams.
  if (stage_ != Stage::over && place_.is_aborted.load()) return OperationState::failed;
  while (step()) {
  }
  return state_;
}

void LevelsOperation::cancel() {
  is_cancelled_ = true;
  // Once all ranks have agreed, the calls of the other ranks need this rank. So the operation goes
  // on and its result is dropped.
  if (stage_ == Stage::agreeing && part_) part_->cancel();
}

bool LevelsOperation::step() {
  switch (stage_) {
    case Stage::agreeing:
      if (!is_part_done()) return stage_ == Stage::over;
      // Nothing has been put on a stream yet, so a cancelled operation can end now.
      if (is_cancelled_) return end(OperationState::failed);
      pack();
      return true;
    case Stage::packing:
      if (!has_passed(kPacked)) return false;
      stage_ = Stage::before;
      return true;
    case Stage::before:
      if (part_ && !is_part_done()) return stage_ == Stage::over;
      if (!start_next(plan_.before, {})) fetch();
      return true;
    case Stage::fetching:
      if (!has_passed(kFetched)) return false;
      cross();
      return true;
    case Stage::crossing:
      if (part_ && !is_part_done()) return stage_ == Stage::over;
      put();
      return true;
    case Stage::after:
      if (part_ && !is_part_done()) return stage_ == Stage::over;
      if (!start_next(plan_.after, {&scratch_->event, 1})) unpack();
      return true;
    case Stage::unpacking:
      return has_passed(kUnpacked) && end(OperationState::done);
    case Stage::over:
      return false;
  }
  return false;
}

bool LevelsOperation::is_part_done() {
  const auto state = part_->advance();
  if (state == OperationState::pending) return false;
  if (state != OperationState::done) {
    if (const auto* why = part_->failure()) failure_ = *why;
    end(state);
    return false;
  }
  part_.reset();
  return true;
}

// --- the stages ---------------------------------------------------------------------------------

void LevelsOperation::pack() {
  auto& runtime = *place_.runtime;
  stage_ = Stage::packing;
  is_on_streams_ = true;
  for (void* event : device_.ready)
    if (event != nullptr) runtime.wait_event(streams_.packing, event);
  if (is_bucket_)
    runtime.pack({collective_.output, collective_.dtype, plan_.reduced, 0, 0, false},
                 device_.inputs, device_.prescale, false, streams_.packing);
  tell(streams_.packing, kPacked);
}

bool LevelsOperation::start_next(const std::vector<LevelsPlan::Call>& calls,
                                 std::span<void* const> ready) {
  if (next_ == calls.size()) return false;
  DeviceLaunch device;
  device.ready = ready;
  device.agreed = true;
  Launch launch;
  launch.tag = tag_ | ++made_ << kCallShift;
  launch.device = &device;
  part_ = place_.inner->start(collective_of(calls[next_++]), launch);
  return true;
}

Collective LevelsOperation::collective_of(const LevelsPlan::Call& call) const {
  Collective collective;
  collective.kind = call.kind;
  collective.dtype = collective_.dtype;
  collective.op = collective_.op;
  collective.root = call.root;
  collective.input = memory_of(call.input);
  collective.output = memory_of(call.output);
  collective.send_counts = call.counts;
  return collective;
}

std::byte* LevelsOperation::memory_of(const LevelsPlan::Spot& spot) const {
  const auto base = [&]() -> std::byte* {
    switch (spot.memory) {
      case LevelsPlan::Memory::pinned:
        return scratch_->pinned;
      case LevelsPlan::Memory::scratch:  // there is none if this rank has no part
        return scratch_->device ? scratch_->device->data() : nullptr;
      case LevelsPlan::Memory::input:
        // Neither level writes to the input.
        if (!is_bucket_) return const_cast<std::byte*>(collective_.input);
        break;
      case LevelsPlan::Memory::output:
        break;
    }
    return collective_.output;
  }();
  return base == nullptr ? nullptr : base + bytes_of(spot.at);
}

void LevelsOperation::fetch() {
  stage_ = Stage::fetching;
  next_ = 0;
  for (const auto& copy : plan_.fetch)
    if (copy.count > 0)
      place_.runtime->copy(scratch_->pinned + bytes_of(copy.pinned), memory_of(copy.device),
                           bytes_of(copy.count), streams_.copying);
  tell(streams_.copying, kFetched);
}

void LevelsOperation::cross() {
  stage_ = Stage::crossing;
  if (!plan_.cross) return;
  Launch launch;
  launch.tag = tag_;
  part_ = place_.cross->start(collective_of(*plan_.cross), launch);
}

void LevelsOperation::put() {
  auto& runtime = *place_.runtime;
  stage_ = Stage::after;
  for (const auto& copy : plan_.put)
    if (copy.count > 0)
      runtime.copy(memory_of(copy.device), scratch_->pinned + bytes_of(copy.pinned),
                   bytes_of(copy.count), streams_.copying);
  runtime.record(scratch_->event, streams_.copying);
}

void LevelsOperation::unpack() {
  stage_ = Stage::unpacking;
  const Piece whole{collective_.output, collective_.dtype, 0, plan_.reduced};
  auto outputs = is_bucket_ ? device_.outputs : std::span<const Piece>(&whole, 1);
  if (is_cancelled_ || (!is_bucket_ && (collective_.scale.is_one() || plan_.reduced == 0)))
    outputs = {};
  const DeviceOutcome outcome{scratch_->word, mark(kUnpacked), mark(kUnpacked),
                              is_cancelled_ ? std::span<uint64_t* const>() : device_.gates};
  auto& runtime = *place_.runtime;
  runtime.unpack({collective_.output, collective_.dtype, plan_.reduced, 0, 0, false}, outputs,
                 collective_.scale, outcome, streams_.copying);
  runtime.host_function(streams_.copying, [bell = place_.bell] { bell->ring(); });
}

}  // namespace tutti
