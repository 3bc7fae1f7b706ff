#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <unordered_map>

#include "tutti/backends/device/device_backend.h"
#include "tutti/backends/nccl/calls.h"
#include "tutti/backends/nccl/catch_up.h"
#include "tutti/backends/nccl/connect.h"
#include "tutti/backends/nccl/stream_queue.h"
#include "tutti/backends/order/sequencer.h"
#include "tutti/backends/stream/rest_backend.h"
#include "tutti/base/error.h"

// Runs collectives on the memory of GPUs by NCCL. Our own channels serve host memory, control
// messages and liveness.
//
// Operations of a queue start in the same order on all ranks, so they go to NCCL immediately. Their
// verdicts (go or veto) travel in extra bytes behind the bucket. Other operations are first brought
// into one order (see Sequencer). Negotiated buckets and replayed buckets have no common order. So
// each of these two queues has its own communicator of NCCL.

namespace tutti {

namespace {

constexpr int kStreamQueues = 2;
// Intervals of the timer that wakes the engine while operations run. NCCL reports errors, and
// whether it takes the next call, only when it is asked. kAskSoonNanos applies while calls wait.
constexpr long kAskNanos = 20'000'000, kAskSoonNanos = 500'000;

class SequencedOperation;

struct NcclInheritance final : Inheritance {
  std::shared_ptr<NcclCommunicator> root;
  std::string failure;  // says why there is no communicator
};

class NcclBackend final : public DeviceBackend {
 public:
  NcclBackend(const Context& context, std::unique_ptr<Backend> rest, NcclPlace place,
              std::shared_ptr<NcclCommunicator> root,
              const std::vector<std::shared_ptr<NcclCommunicator>>& communicators)
      : DeviceBackend(std::move(rest), place.bell),
        place_(std::move(place)),
        root_(std::move(root)),
        sequencer_(*rest_->transport()),
        catch_up_(*rest_->transport()),
        timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    if (!timer_) throw system_error("timerfd_create", errno);
    capabilities_.route =
        fmt::format("NCCL {} on {}", place_.library->version_text(), to_string(place_.device));
    capabilities_.devices = nccl_services(place_.device, context.determinism);
    for (size_t i = 0; i < communicators.size(); ++i)
      queues_.push_back(std::make_unique<StreamQueue>(
          place_, communicators[i],
          [this, queue = static_cast<uint32_t>(i)](const BucketShape& shape) {
            catch_up_.ask({shape, queue});
          }));
    poller_.watch(timer_.get(), EPOLLIN);
    if (context.determinism == Determinism::rank_order && context.rank == 0 && context.log)
      context.log(LogLevel::warning,
                  "backend nccl: NCCL promises no rank order, so reductions go through host memory "
                  "and Tutti's own channels instead");
  }
  ~NcclBackend() override {
    queues_.clear();
    root_->close(Deadline::after(1));
  }

  bool progress() override;
  bool arm() override;
  void abort(const Error& error) noexcept override {
    rest_->abort(error);
    for (auto& queue : queues_) queue->abort();
    if (!root_->is_over()) NcclCommunicator::abort_apart(root_, [] {});
  }
  std::shared_ptr<Inheritance> split(const Context& context, int color, int key) override;

  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    if (device == place_.device) return place_.regions->allocate(bytes);
    return rest_->allocate(bytes, device);
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override;

 private:
  friend class SequencedOperation;
  void set_timer(long nanos);
  StreamQueue& queue_of(int queue) { return *queues_[queue == kReplays ? 1 : 0]; }

  static constexpr int kReplays = 1;  // the queue of replayed buckets

  const NcclPlace place_;
  // The communicator of NCCL from which all others are split, for the queues and for Communicators
  // that are split later. It never runs an operation, because NCCL can split only an idle
  // communicator.
  const std::shared_ptr<NcclCommunicator> root_;
  Sequencer sequencer_;
  CatchUp catch_up_;
  // by tag: operations that wait until all ranks have started them
  std::unordered_map<uint64_t, SequencedOperation*> sequenced_;
  std::vector<std::unique_ptr<StreamQueue>> queues_;
  Descriptor timer_;
  long timer_nanos_ = 0;
};

// An operation without a queue. It waits until all ranks have started it and none vetoes it.
class SequencedOperation final : public Operation {
 public:
  SequencedOperation(NcclBackend& backend, const Collective& collective, const Launch& launch)
      : backend_(backend), collective_(collective), launch_(launch), device_(*launch.device) {
    peer_ = is_pair(collective.kind) ? collective.root : -1;
    device_.agreed = true;
    launch_.device = &device_;
    backend_.sequenced_.emplace(launch.tag, this);
    backend_.sequencer_.ready(launch.tag, launch.verdict, peer_);
  }
  ~SequencedOperation() override {
    if (stage_ == Stage::waiting) backend_.sequenced_.erase(launch_.tag);
  }

  void on_call(Sequencer::Answer answer) {
    backend_.sequenced_.erase(launch_.tag);
    stage_ = answer == Sequencer::Answer::run    ? Stage::called
             : answer == Sequencer::Answer::veto ? Stage::vetoed
                                                 : Stage::dropped;
    if (stage_ == Stage::called)
      inner_ = backend_.queue_of(launch_.queue).start(collective_, launch_);
  }

  OperationState advance() override {
    switch (stage_) {
      case Stage::waiting:
        return backend_.queue_of(launch_.queue).has_failed() ||
                       backend_.sequencer_.is_hopeless(peer_)
                   ? OperationState::failed
                   : OperationState::pending;
      case Stage::vetoed:
        return is_cancelled_ ? OperationState::failed : OperationState::vetoed;
      case Stage::dropped:  // a rank cancelled it; this rank will cancel it too
        return is_cancelled_ ? OperationState::failed : OperationState::pending;
      case Stage::called:
        break;
    }
    const auto state = inner_->advance();
    return state == OperationState::done && is_cancelled_ ? OperationState::failed : state;
  }
  void cancel() override {
    if (!is_cancelled_ && stage_ == Stage::waiting) backend_.sequencer_.cancel(launch_.tag);
    is_cancelled_ = true;
  }
  const Error* failure() const override { return inner_ ? inner_->failure() : nullptr; }
  // NCCL is called once all ranks that take part have started the operation.
  bool lacks_ranks() const override { return stage_ == Stage::waiting; }

 private:
  enum class Stage { waiting, vetoed, dropped, called };
  NcclBackend& backend_;
  const Collective collective_;
  Launch launch_;
  DeviceLaunch device_;
  int peer_ = -1;
  Stage stage_ = Stage::waiting;
  bool is_cancelled_ = false;
  OperationPtr inner_;
};

bool NcclBackend::progress() {
  bell_->silence();
  bool moved = rest_->progress();
  moved |= sequencer_.progress();
  while (const auto call = sequencer_.take()) {
    moved = true;
    const auto found = sequenced_.find(call->tag);
    if (found != sequenced_.end()) found->second->on_call(call->answer);
  }
  moved |= catch_up_.progress();
  while (const auto request = catch_up_.take())
    queue_of(static_cast<int>(request->queue)).fill(request->shape);
  for (auto& queue : queues_) {
    moved |= queue->progress();
    if (catch_up_.has_lost_peer() && !queue->idle()) queue->lose_peer();
  }
  return moved;
}

bool NcclBackend::arm() {
  long nanos = 0;
  for (const auto& queue : queues_) {
    if (queue->must_ask())
      nanos = kAskSoonNanos;
    else if (!queue->idle() && nanos == 0)
      nanos = kAskNanos;
  }
  set_timer(nanos);
  return DeviceBackend::arm();
}

void NcclBackend::set_timer(long nanos) {
  if (nanos == 0 && timer_nanos_ == 0) return;
  uint64_t expirations = 0;
  const bool has_expired = ::read(timer_.get(), &expirations, sizeof expirations) > 0;
  if (nanos == timer_nanos_ && !has_expired) return;
  timer_nanos_ = nanos;
  const itimerspec once{{0, 0}, {0, nanos}};
  ::timerfd_settime(timer_.get(), 0, &once, nullptr);
}

OperationPtr NcclBackend::start(const Collective& collective, const Launch& launch) {
  if (launch.device == nullptr) return rest_->start(collective, launch);
  check(collective, place_.device, "NCCL");
  if (launch.queue == kNoQueue)
    return OperationPtr(new SequencedOperation(*this, collective, launch));
  return queue_of(launch.queue).start(collective, launch);
}

std::shared_ptr<Inheritance> NcclBackend::split(const Context& context, int color, int key) {
  auto inheritance = std::make_shared<NcclInheritance>();
  try {
    place_.runtime->make_current(place_.device);
    inheritance->root = NcclConnector(context, place_.library,
                                      parse_nccl_settings(context.setting("TUTTI_NCCL_CONFIG")))
                            .split(*root_, color, key);
  } catch (const Error& error) {
    inheritance->failure = error.what();
  }
  return inheritance;
}

std::unique_ptr<Backend> connect(const Context& context) {
  NcclPlace place;
  NcclSettings settings;
  std::string failure;
  try {
    place.device = choose_device(context, "NCCL");
    place.library = std::make_shared<const NcclLibrary>(
        NcclLibrary::load(context.setting("TUTTI_BACKEND_LIBRARY")));
    settings = parse_nccl_settings(context.setting("TUTTI_NCCL_CONFIG"));
    make_config(settings, *place.library);
  } catch (const Error& error) {
    failure = error.what();
  }
  const auto inheritance = std::dynamic_pointer_cast<NcclInheritance>(context.inheritance);
  if (inheritance && failure.empty()) failure = inheritance->failure;
  NcclConnector connector(context, place.library, std::move(settings));
  connector.announce(failure);
  place.runtime = &device_runtime(place.device.kind);
  place.rank = context.rank;
  place.size = context.size;
  place.bell = std::make_shared<DeviceBell>();
  place.regions = std::make_shared<NcclRegions>(place.library, *place.runtime, place.device);
  auto rest = make_rest_backend(context, "nccl");
  place.runtime->make_current(place.device);
  auto root = inheritance ? std::move(inheritance->root) : connector.connect();
  std::vector<std::shared_ptr<NcclCommunicator>> communicators;
  for (int i = 0; i < kStreamQueues; ++i)
    communicators.push_back(connector.split(*root, 0, context.rank));
  return std::make_unique<NcclBackend>(context, std::move(rest), std::move(place), std::move(root),
                                       communicators);
}

std::string version() { return NcclLibrary::load("").version_text(); }

}  // namespace

const BackendPlugin tutti_backend_plugin = {
    .name = "nccl",
    .summary = "collectives on GPUs by NCCL; host memory over Tutti's own channels",
    .connect = connect,
    .version = version,
    .works_on_devices = true,
};

}  // namespace tutti
