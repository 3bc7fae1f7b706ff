#include "tutti/backends/nccl/stream_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tutti/backends/nccl/calls.h"
#include "tutti/base/process/fork_guard.h"

namespace tutti {

namespace {

// A failure of NCCL is held back for this time. NCCL may notice the end of a peer before our own
// channels do, but only our channels know which rank it was.
constexpr auto kGrace = std::chrono::milliseconds(500);
// A peer that leaves has done its part of an operation, but this rank's part may still be running.
constexpr auto kGraceAfterLeaving = std::chrono::seconds(2);
constexpr double kDrainSeconds = 3, kCloseSeconds = 1;

}  // namespace

// --- an operation -------------------------------------------------------------------------------

NcclOperation::NcclOperation(StreamQueue& queue)
    : queue_(queue), word_(queue.place_.runtime->take_word()) {}

NcclOperation::~NcclOperation() {
  if (!is_abandoned_) queue_.place_.runtime->give_back_word(word_);
}

void NcclOperation::begin(const Collective& collective, const Launch& launch) {
  collective_ = collective;
  device_ = *launch.device;
  tag_ = launch.tag;
  contributors_ = launch.contributors > 0 ? launch.contributors : queue_.place_.size;
  is_bucket_ = !device_.inputs.empty() || !device_.outputs.empty();
  vetoes_ = launch.verdict != 0;
}

void NcclOperation::begin_filling(const BucketShape& shape, std::unique_ptr<Region> memory) {
  filling_ = std::move(memory);
  count_ = shape.count;
  collective_ = {};
  collective_.kind = CollectiveKind::allreduce;
  collective_.dtype = shape.dtype;
  collective_.op = shape.op;
  collective_.input = collective_.output = filling_->data();
  collective_.send_counts = {&count_, 1};
  device_ = {};
  tag_ = shape.tag;
  is_bucket_ = vetoes_ = true;
}

DeviceBucket NcclOperation::bucket() const {
  DeviceBucket bucket{
      collective_.output, collective_.dtype, collective_.send_counts[0], 0, 0, false};
  if (!device_.agreed) {
    bucket.lanes = kLaneBytes / size_of(collective_.dtype);
    bucket.own_lane = queue_.place_.rank % bucket.lanes;
    bucket.zero_vetoes = collective_.op == ReduceOp::min || collective_.op == ReduceOp::product;
  }
  return bucket;
}

Scale NcclOperation::scale() const {
  Scale scale = collective_.scale;
  if (reduces(collective_.kind) && collective_.op == ReduceOp::average)
    scale.divisor *= contributors_;
  scale.factor *= NcclOperators::divisor(collective_, queue_.place_.size);
  return scale;
}

NcclCommunicator::State NcclOperation::call() {
  const auto& place = queue_.place_;
  for (void* event : device_.ready)
    if (event != nullptr) place.runtime->wait_event(queue_.stream_, event);
  Collective collective = collective_;
  int64_t count = 0;
  if (is_bucket_) {
    const auto packed = bucket();
    DeviceSpan packing(*place.runtime, queue_.stream_, device_.spans, "pack");
    place.runtime->pack(packed, device_.inputs, device_.prescale, vetoes_, queue_.stream_);
    packing.end();
    count = packed.count + packed.lanes;
    collective.input = collective.output;
    collective.send_counts = {&count, 1};
    place.regions->register_for(queue_.communicator_, collective.output);
  }
  moving_.emplace(*place.runtime, queue_.stream_, device_.spans,
                  reduces(collective.kind) ? "reduce" : "move");
  return queue_.communicator_->call(needs_group(collective), [&](ncclComm_t comm) {
    ncclRedOp_t op = ncclSum;
    const auto found = queue_.operators_.find(*place.library, comm, collective, place.size, op);
    if (found != ncclSuccess) return found;
    return nccl_call(*place.library, comm, collective, place.rank, op, queue_.stream_);
  });
}

void NcclOperation::follow() {
  auto& runtime = *queue_.place_.runtime;
  moving_->end();
  ++turn_;
  DeviceSpan unpacking(runtime, queue_.stream_, device_.spans, "unpack");
  const DeviceOutcome outcome{word_, 2 * turn_, 2 * turn_ + 1,
                              is_cancelled_ ? std::span<uint64_t* const>() : device_.gates};
  if (is_bucket_) {
    const auto outputs = is_cancelled_ ? std::span<const Piece>() : device_.outputs;
    runtime.unpack(bucket(), outputs, scale(), outcome, queue_.stream_);
  } else {
    // For a reduction, unpack() scales the output in place. For other kinds it only reports the end
    // of the operation.
    Piece own;
    const bool has_output =
        reduces(collective_.kind) &&
        (collective_.kind != CollectiveKind::reduce || collective_.root == queue_.place_.rank);
    if (has_output && !scale().is_one()) {
      const auto part = collective_.kind == CollectiveKind::reduce_scatter ? queue_.place_.rank : 0;
      own = {collective_.output, collective_.dtype, 0,
             collective_.send_counts[static_cast<size_t>(part)]};
    }
    runtime.unpack({own.data, own.dtype, own.count, 0, 0, false}, {&own, 1}, scale(), outcome,
                   queue_.stream_);
  }
  unpacking.end();
  queue_.tell_when_done();
}

uint64_t NcclOperation::outcome() const {
  if (stage_ != Stage::on_stream) return 0;
  const auto value = std::atomic_ref(*word_).load(std::memory_order_acquire);
  return value >= 2 * turn_ ? value : 0;
}

OperationState NcclOperation::advance() {
  const auto value = outcome();
  // After an abort the stream goes on with incomplete data, so the value of the word has no
  // meaning.
  if (value == 0 || queue_.abort_asked_) {
    if (!queue_.has_failed()) return OperationState::pending;
    if (!failure_ && !queue_.failure().empty())
      failure_.emplace(ErrorCode::peer_lost, fmt::format("NCCL said: {}", queue_.failure()));
    return OperationState::failed;
  }
  if (is_cancelled_) return OperationState::failed;
  return value == 2 * turn_ ? OperationState::done : OperationState::vetoed;
}

void NcclOperation::cancel() {
  if (is_cancelled_) return;
  is_cancelled_ = true;
  // Other ranks may already have called NCCL for this operation. So this rank takes part, with a
  // veto, even if it has not called NCCL yet.
  vetoes_ = true;
  if (is_bucket_ && !device_.agreed)
    queue_.ask_({tag_, collective_.dtype, collective_.op, collective_.send_counts[0]});
}

void NcclOperation::release() { queue_.recycle(*this); }

// --- the queue ----------------------------------------------------------------------------------

StreamQueue::StreamQueue(const NcclPlace& place, std::shared_ptr<NcclCommunicator> communicator,
                         Ask ask)
    : place_(place),
      ask_(std::move(ask)),
      communicator_(std::move(communicator)),
      stream_(place.runtime->create_stream(place.device)),
      telling_(place.runtime->create_stream(place.device)),
      event_(place.runtime->create_event(place.device)) {}

StreamQueue::~StreamQueue() {
  if (busy_ > static_cast<int>(fillers_.size())) abort();
  if (!abort_asked_) communicator_->close(Deadline::after(kCloseSeconds));
  const auto deadline = breaking_off_.value_or(Deadline::after(kDrainSeconds));
  drain(deadline);
  communicator_->await_end(deadline);
  place_.runtime->destroy_event(event_);
  place_.runtime->destroy_stream(stream_);
  place_.runtime->destroy_stream(telling_);
}

NcclOperation& StreamQueue::take() {
  ++busy_;
  if (free_.empty()) {
    operations_.push_back(std::make_unique<NcclOperation>(*this));
    return *operations_.back();
  }
  auto& operation = *free_.back();
  free_.pop_back();
  operation.stage_ = NcclOperation::Stage::waiting;
  operation.is_cancelled_ = false;
  operation.failure_.reset();
  return operation;
}

void StreamQueue::recycle(NcclOperation& operation) {
  using Stage = NcclOperation::Stage;
  const bool is_submitted = operation.stage_ != Stage::waiting;
  // When this returns, the caller frees the operation's memory, so no stream may use it any more.
  if (is_submitted && operation.outcome() == 0 && !break_off()) {
    // The device still works on the operation or will do so. So no other operation may reuse its
    // object and word, and the memory of a bucket that it fills must stay mapped.
    operation.is_abandoned_ = true;
    if (operation.filling_) keep_for_good(operation.filling_.release());
  } else {
    operation.filling_.reset();
    free_.push_back(&operation);
  }
  --busy_;
  if (called_ == &operation) called_ = nullptr;
  std::erase(waiting_, &operation);
  operation.device_ = {};
  operation.moving_.reset();
  operation.is_bucket_ = operation.vetoes_ = false;
}

OperationPtr StreamQueue::start(const Collective& collective, const Launch& launch) {
  auto& operation = take();
  operation.begin(collective, launch);
  submit(operation);
  return OperationPtr(&operation);
}

void StreamQueue::submit(NcclOperation& operation) {
  if (operation.is_bucket_) last_tag_ = std::max(last_tag_, operation.tag_);
  waiting_.push_back(&operation);
  advance_calls();
}

void StreamQueue::fill(const BucketShape& shape) {
  if (shape.tag <= last_tag_) return;
  const auto bytes = static_cast<size_t>(shape.count * size_of(shape.dtype) + kLaneBytes);
  auto memory = place_.regions->allocate(bytes);
  auto& operation = take();
  operation.begin_filling(shape, std::move(memory));
  fillers_.push_back(&operation);
  submit(operation);
}

bool StreamQueue::advance_calls() {
  using State = NcclCommunicator::State;
  bool moved = false;
  while (!has_failed()) {
    if (called_ != nullptr) {
      if (communicator_->state() != State::ready) return moved;
      called_->stage_ = NcclOperation::Stage::on_stream;
      std::exchange(called_, nullptr)->follow();
      moved = true;
    }
    if (waiting_.empty()) return moved;
    called_ = waiting_.front();
    waiting_.pop_front();
    called_->stage_ = NcclOperation::Stage::called;
    moved = true;
    if (called_->call() != State::ready) return moved;
    called_->stage_ = NcclOperation::Stage::on_stream;
    std::exchange(called_, nullptr)->follow();
  }
  return moved;
}

bool StreamQueue::finish_fillers() {
  const auto before = fillers_.size();
  std::erase_if(fillers_, [&](NcclOperation* filler) {
    if (filler->advance() == OperationState::pending) return false;
    filler->release();
    return true;
  });
  return fillers_.size() < before;
}

bool StreamQueue::progress() {
  // NCCL reports errors only when it is asked.
  if (busy_ > 0 && called_ == nullptr) communicator_->state();
  bool moved = advance_calls();
  moved |= finish_fillers();
  return moved;
}

void StreamQueue::tell_when_done() {
  auto& runtime = *place_.runtime;
  runtime.record(event_, stream_);
  runtime.wait_event(telling_, event_);
  runtime.host_function(telling_, [bell = place_.bell] { bell->ring(); });
}

bool StreamQueue::has_failed() {
  if (abort_asked_) return true;
  if (!communicator_->failure().empty() && !failed_since_) failed_since_ = Clock::now();
  const auto is_past = [](const auto& since, auto grace) {
    return since && Clock::now() - *since > grace;
  };
  return is_past(failed_since_, kGrace) || is_past(lost_since_, kGraceAfterLeaving);
}

// --- the end ------------------------------------------------------------------------------------

void StreamQueue::abort() noexcept {
  if (abort_asked_.exchange(true)) return;
  NcclCommunicator::abort_apart(communicator_, [bell = place_.bell] { bell->ring(); });
}

bool StreamQueue::break_off() {
  abort();
  // A running operation may wait for a stream of the user. That stream may wait until an earlier
  // operation opens its gate. So the gates of all operations are opened.
  for (const auto& operation : operations_)
    for (auto* gate : operation->device_.gates)
      std::atomic_ref(*gate).store(1, std::memory_order_release);
  // All waits of the cleanup share one deadline.
  if (!breaking_off_) breaking_off_ = Deadline::after(kDrainSeconds);
  return drain(*breaking_off_);
}

bool StreamQueue::drain(Deadline deadline) noexcept {
  auto& runtime = *place_.runtime;
  try {
    for (const auto stream : {stream_, telling_}) {
      runtime.record(event_, stream);
      while (!runtime.reached(event_)) {
        if (deadline.passed()) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    return true;
  } catch (const std::exception&) {
    // After a sticky error of CUDA every call on the device fails. The first failure was reported
    // with its operation. This function is called during cleanup, which must go on.
    return false;
  }
}

}  // namespace tutti
