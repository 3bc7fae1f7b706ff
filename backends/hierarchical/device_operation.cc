#include "tutti/backends/hierarchical/device_operation.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>

namespace tutti {

namespace {

// For the second of two operations of the inner level that belong to one bucket.
constexpr uint64_t kGatherTag = uint64_t{1} << 63;
constexpr double kDrainSeconds = 3;

}  // namespace

std::unique_ptr<LevelsScratch> LevelsPlace::take(size_t bytes) {
  const auto wanted = std::bit_ceil(std::max<size_t>(bytes, 4096));
  const auto fitting =
      std::find_if(free.begin(), free.end(), [&](const auto& one) { return one->bytes == wanted; });
  if (fitting != free.end()) {
    auto found = std::move(*fitting);
    free.erase(fitting);
    ++found->turn;
    return found;
  }
  auto made = std::make_unique<LevelsScratch>();
  made->pinned = static_cast<std::byte*>(runtime->allocate_host(wanted));
  made->bytes = wanted;
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
      count_(collective.send_counts[0]) {
  const int64_t n = place_.inner_size;
  for (int64_t i = 0; i < n; ++i) shares_.push_back(count_ / n + (i < count_ % n ? 1 : 0));
  for (int i = 0; i < place_.inner_rank; ++i)
    share_offset_ += shares_[static_cast<size_t>(i)] * size_of(collective_.dtype);
  if (collective_.op == ReduceOp::average) {
    collective_.op = ReduceOp::sum;
    collective_.scale.divisor *= contributors_;
  }
  scratch_ = place_.take(share_bytes());
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
  // Its memory is about to go, so nothing may touch it any more. What is packed may wait for a
  // stream of the user that waits for an operation before it.
  if (!place_.breaking_off) place_.breaking_off = Deadline::after(kDrainSeconds);
  for (auto* operation : place_.running) operation->open_gates();
  open_gates();
  auto& runtime = *place_.runtime;
  for (const auto stream : {streams_.packing, streams_.copying}) {
    runtime.record(scratch_->event, stream);
    while (!runtime.reached(scratch_->event)) {
      if (place_.breaking_off->passed()) {
        // The device still works on it: it must stay where it is.
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
  place_.runtime->host_function(stream, [bell = place_.bell] {
    bell->bell.ring();
    bell->has_news.store(true, std::memory_order_release);
  });
}

bool LevelsOperation::end(OperationState state) {
  stage_ = Stage::over;
  state_ = is_cancelled_ ? OperationState::failed : state;
  part_.reset();
  return true;
}

OperationState LevelsOperation::advance() {
  // What is on a stream may wait for ever once the levels are aborted.
  if (stage_ != Stage::over && place_.is_aborted.load()) return OperationState::failed;
  while (step()) {
  }
  return state_;
}

void LevelsOperation::cancel() {
  is_cancelled_ = true;
  // Later it is in the other ranks' calls: it goes on, and drops what comes of it.
  if (stage_ == Stage::agreeing && part_) part_->cancel();
}

bool LevelsOperation::step() {
  switch (stage_) {
    case Stage::agreeing:
      if (!is_part_done()) return stage_ == Stage::over;
      // Whoever vetoes hears of nothing else.
      if (is_cancelled_) return end(OperationState::failed);
      pack();
      return true;
    case Stage::packing:
      if (!has_passed(kPacked)) return false;
      stage_ = Stage::reducing;
      start_inner(CollectiveKind::reduce_scatter, {});
      return true;
    case Stage::reducing:
      if (!is_part_done()) return stage_ == Stage::over;
      fetch();
      return true;
    case Stage::fetching:
      if (!has_passed(kFetched)) return false;
      cross();
      return true;
    case Stage::crossing:
      if (part_ && !is_part_done()) return stage_ == Stage::over;
      gather();
      return true;
    case Stage::gathering:
      if (!is_part_done()) return stage_ == Stage::over;
      unpack();
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
    runtime.pack({collective_.output, collective_.dtype, count_, 0, 0, false}, device_.inputs,
                 device_.prescale, false, streams_.packing);
  tell(streams_.packing, kPacked);
}

void LevelsOperation::start_inner(CollectiveKind kind, std::span<void* const> ready) {
  const bool gathers = kind == CollectiveKind::allgather;
  Collective collective;
  collective.kind = kind;
  collective.dtype = collective_.dtype;
  collective.op = collective_.op;
  collective.input = gathers ? share() : is_bucket_ ? collective_.output : collective_.input;
  collective.output = gathers ? collective_.output : share();
  collective.send_counts = shares_;
  DeviceLaunch device;
  device.ready = ready;
  device.agreed = true;
  Launch launch;
  launch.tag = gathers ? tag_ ^ kGatherTag : tag_;
  launch.device = &device;
  part_ = place_.inner->start(collective, launch);
}

void LevelsOperation::fetch() {
  stage_ = Stage::fetching;
  const auto bytes = share_bytes();
  if (bytes > 0) place_.runtime->copy(scratch_->pinned, share(), bytes, streams_.copying);
  tell(streams_.copying, kFetched);
}

// Every rank of the same number on its host has as many elements.
void LevelsOperation::cross() {
  stage_ = Stage::crossing;
  const auto count = std::span(shares_).subspan(static_cast<size_t>(place_.inner_rank), 1);
  if (count[0] == 0) return;
  Collective collective;
  collective.kind = CollectiveKind::allreduce;
  collective.dtype = collective_.dtype;
  collective.op = collective_.op;
  collective.input = collective.output = scratch_->pinned;
  collective.send_counts = count;
  Launch launch;
  launch.tag = tag_;
  part_ = place_.cross->start(collective, launch);
}

void LevelsOperation::gather() {
  auto& runtime = *place_.runtime;
  stage_ = Stage::gathering;
  const auto bytes = share_bytes();
  if (bytes > 0) runtime.copy(share(), scratch_->pinned, bytes, streams_.copying);
  runtime.record(scratch_->event, streams_.copying);
  start_inner(CollectiveKind::allgather, {&scratch_->event, 1});
}

void LevelsOperation::unpack() {
  stage_ = Stage::unpacking;
  Piece whole{collective_.output, collective_.dtype, 0, count_};
  auto outputs = is_bucket_ ? device_.outputs : std::span<const Piece>(&whole, 1);
  if (is_cancelled_ || (!is_bucket_ && collective_.scale.is_one())) outputs = {};
  const DeviceOutcome outcome{scratch_->word, mark(kUnpacked), mark(kUnpacked),
                              is_cancelled_ ? std::span<uint64_t* const>() : device_.gates};
  auto& runtime = *place_.runtime;
  runtime.unpack({collective_.output, collective_.dtype, count_, 0, 0, false}, outputs,
                 collective_.scale, outcome, streams_.copying);
  runtime.host_function(streams_.copying, [bell = place_.bell] {
    bell->bell.ring();
    bell->has_news.store(true, std::memory_order_release);
  });
}

}  // namespace tutti
