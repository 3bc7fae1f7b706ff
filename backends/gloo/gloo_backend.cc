#include <fmt/format.h>
#include <gloo/config.h>
#include <sys/epoll.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "tutti/backends/backend.h"
#include "tutti/backends/gloo/calls.h"
#include "tutti/backends/gloo/mesh.h"
#include "tutti/backends/gloo/worker.h"
#include "tutti/backends/order/sequencer.h"
#include "tutti/backends/stream/rest_backend.h"
#include "tutti/base/error.h"
#include "tutti/collectives/chooser.h"
#include "tutti/collectives/schedule.h"
#include "tutti/kernels/convert.h"

// Runs collectives by Gloo. Our own channels carry control messages, liveness and everything that
// Gloo does not support. Gloo's calls block and cannot be cancelled. So Gloo is called on a thread
// of its own, and only after all ranks have started the operation and none vetoes it (see
// Sequencer).

namespace tutti {

namespace {

constexpr size_t kMostOperations = 1024;
// Allreduces of fewer bytes use halving_doubling. If the number of ranks is not a power of two, the
// second bound applies, because some ranks must then send all of their input to others.
constexpr int64_t kHalvedBelow = 8 << 20, kFoldedBelow = 64 << 10;
// A failure of Gloo is held back for this time. Gloo may notice the end of a peer before our own
// channels do, but only our channels know which rank it was.
constexpr auto kGrace = std::chrono::milliseconds(500);

class GlooOperation;

class GlooBackend final : public Backend {
 public:
  GlooBackend(const Context& context, std::unique_ptr<Backend> rest)
      : rest_(std::move(rest)),
        size_(context.size),
        is_rank_order_(context.determinism == Determinism::rank_order),
        chooser_(context.algorithms, context.determinism),
        is_overridden_(!context.algorithms.empty()),
        mesh_(GlooMesh::connect(context)),
        caller_(mesh_),
        sequencer_(*rest_->transport()),
        worker_([this] { tell(); }, [this] { break_off(); }) {
    poller_.watch(rest_->descriptor(), EPOLLIN);
    poller_.watch(bell_.descriptor(), EPOLLIN);
    if (is_rank_order_ && context.rank == 0 && context.log)
      context.log(LogLevel::warning,
                  "backend gloo: Gloo promises no rank order, so reductions use Tutti's own "
                  "channels instead");
  }
  ~GlooBackend() override { poller_.forget(rest_->descriptor()); }

  bool progress() override;
  bool arm() override {
    if (!rest_->arm()) return false;
    slept_ = may_sleep_ = true;
    return !has_news_;
  }
  int descriptor() const override { return poller_.descriptor(); }
  // Returns true even if this rank has no operation, because threads of other ranks on this machine
  // may need the cores.
  bool works_elsewhere() const override { return true; }
  void abort(const Error& error) noexcept override {
    rest_->abort(error);
    {
      const std::lock_guard lock(abort_mutex_);
      is_aborted_ = true;
    }
    aborted_.notify_all();
    is_broken_ = true;
    mesh_->close();
  }

  Capabilities capabilities() const override {
    auto capabilities = rest_->capabilities();
    capabilities.route = fmt::format("Gloo's TCP on {}", mesh_->address());
    return capabilities;
  }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    return rest_->allocate(bytes, device);
  }
  bool packs_itself(const Collective& collective, const Launch& launch) const override {
    if (!is_for_gloo(collective, launch.edges)) return rest_->packs_itself(collective, launch);
    return launch.edges.fill != nullptr &&
           user_memory_of(collective, launch.edges).output != nullptr;
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override;
  std::string_view algorithm(const Collective& collective) const override {
    if (!is_for_gloo(collective, {})) return rest_->algorithm(collective);
    if (collective.kind != CollectiveKind::allreduce) return "gloo";
    return allreduce_by(collective) == GlooAllreduce::ring ? "gloo_ring" : "gloo_halving_doubling";
  }
  Transport* transport() override { return rest_->transport(); }

 private:
  friend class GlooOperation;

  // Returns whether Gloo may run this collective. Gloo does not reduce in rank order, and it
  // computes sums in the type of the elements.
  bool is_for_gloo(const Collective& collective, const Edges& edges) const {
    if (is_rank_order_ && reduces(collective.kind)) return false;
    if (sums_of(collective) != Sums::plain) return false;
    return edges.fill == nullptr || collective.kind == CollectiveKind::allreduce;
  }
  GlooAllreduce allreduce_by(const Collective& collective) const {
    const int64_t bytes = collective.send_counts[0] * size_of(collective.dtype);
    if (is_overridden_) {
      const auto name =
          chooser_.choose({collective.kind, bytes, size_, 1, Determinism::fastest}).name;
      if (name == "ring") return GlooAllreduce::ring;
      if (name == "halving_doubling") return GlooAllreduce::halving_doubling;
    }
    const auto below =
        std::has_single_bit(static_cast<unsigned>(size_)) ? kHalvedBelow : kFoldedBelow;
    return bytes < below ? GlooAllreduce::halving_doubling : GlooAllreduce::ring;
  }

  struct UserMemory {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
  };
  // Returns the user's own memory if an allreduce can run in it without packing. The verdicts (go
  // or veto) of all ranks are known before the allreduce begins. So a veto leaves that memory
  // unchanged. Returns null pointers if the elements must be packed.
  static UserMemory user_memory_of(const Collective& collective, const Edges& edges) {
    if (edges.input == nullptr || edges.output == nullptr) return {};
    const Range whole{0, collective.send_counts[0]};
    const UserMemory memory{edges.input(edges.self, whole), edges.output(edges.self, whole)};
    return memory.input != nullptr && memory.output != nullptr ? memory : UserMemory{};
  }

  void tell() {
    has_news_ = true;
    if (may_sleep_.exchange(false)) bell_.ring();
  }
  // Called on the worker's thread after a call has failed. Later calls would fail too.
  void break_off() {
    is_broken_ = true;
    mesh_->close();
    std::unique_lock lock(abort_mutex_);
    aborted_.wait_for(lock, kGrace, [this] { return is_aborted_.load(); });
  }

  const std::unique_ptr<Backend> rest_;
  const int size_;
  const bool is_rank_order_;
  const Chooser chooser_;
  const bool is_overridden_;
  const std::shared_ptr<GlooMesh> mesh_;
  GlooCaller caller_;  // only the worker's thread uses it
  Bell bell_;
  Poller poller_;
  std::atomic<bool> has_news_{false};
  std::atomic<bool> may_sleep_{false};  // the engine's thread may sleep on the bell
  std::atomic<bool> is_broken_{false};
  std::mutex abort_mutex_;  // guards is_aborted_
  std::condition_variable aborted_;
  std::atomic<bool> is_aborted_{false};

  // Only the thread that drives the engine uses these three members.
  bool slept_ = false;
  Sequencer sequencer_;
  // by tag: operations that wait until all ranks have started them
  std::unordered_map<uint64_t, GlooOperation*> operations_;

  Worker worker_;  // last, so that it is destroyed first
};

class GlooOperation final : public Operation {
 public:
  GlooOperation(GlooBackend& backend, const Collective& collective, const Launch& launch)
      : backend_(backend),
        collective_(collective),
        tag_(launch.tag),
        peer_(is_point_to_point() ? collective.root : -1),
        edges_(launch.edges),
        scale_(collective.scale) {
    if (reduces(collective.kind) && collective.op == ReduceOp::average)
      scale_.divisor *= launch.contributors > 0 ? launch.contributors : backend.size_;
    if (edges_.fill && collective.output == nullptr) {
      const auto place = GlooBackend::user_memory_of(collective, edges_);
      collective_.input = place.input;
      collective_.output = place.output;
      edges_ = {};
    } else if (edges_.fill && launch.verdict == 0) {
      edges_.fill(edges_.self, {0, output_count()}, collective.output);
      collective_.input = collective.output;
    }
    backend_.sequencer_.ready(tag_, launch.verdict, peer_);
    backend_.operations_.emplace(tag_, this);
  }
  ~GlooOperation() override {
    if (stage_ == Stage::waiting) backend_.operations_.erase(tag_);
    if (stage_ != Stage::called || job_.is_over.load(std::memory_order_acquire)) return;
    // When this returns, the caller frees the operation's memory, so Gloo must not use it any more.
    backend_.is_broken_ = true;
    backend_.mesh_->close();
    backend_.worker_.abandon(job_);
  }

  void on_call(const Sequencer::Call& call) {
    backend_.operations_.erase(tag_);
    if (call.answer != Sequencer::Answer::run) {
      stage_ = call.answer == Sequencer::Answer::veto ? Stage::vetoed : Stage::dropped;
      return;
    }
    stage_ = Stage::called;
    job_.run = [this, number = call.number] {
      if (backend_.is_broken_) throw Error(ErrorCode::io, "Gloo's connections are closed");
      backend_.caller_.call(collective_, number,
                            collective_.kind == CollectiveKind::allreduce
                                ? backend_.allreduce_by(collective_)
                                : GlooAllreduce::ring);
    };
    backend_.worker_.post(job_);
  }

  OperationState advance() override {
    switch (stage_) {
      case Stage::waiting:
        // If the call of another operation failed, that operation reports the failure.
        if (!backend_.is_aborted_ && !backend_.sequencer_.is_hopeless(peer_))
          return OperationState::pending;
        backend_.operations_.erase(tag_);
        stage_ = Stage::dropped;
        is_cancelled_ = true;
        return OperationState::failed;
      case Stage::vetoed:
        return is_cancelled_ ? OperationState::failed : OperationState::vetoed;
      case Stage::dropped:  // a rank cancelled it; this rank will cancel it too
        return is_cancelled_ ? OperationState::failed : OperationState::pending;
      case Stage::called:
        break;
    }
    if (!job_.is_over.load(std::memory_order_acquire)) return OperationState::pending;
    if (!job_.failure.empty()) {
      failure_.emplace(ErrorCode::peer_lost, fmt::format("Gloo said: {}", job_.failure));
      return OperationState::failed;
    }
    if (is_cancelled_) return OperationState::failed;
    finish();
    return OperationState::done;
  }
  void cancel() override {
    if (!is_cancelled_ && stage_ == Stage::waiting) backend_.sequencer_.cancel(tag_);
    is_cancelled_ = true;
  }
  const Error* failure() const override { return failure_ ? &*failure_ : nullptr; }
  // Gloo is called once all ranks that take part have started the operation.
  bool lacks_ranks() const override { return stage_ == Stage::waiting; }

 private:
  enum class Stage { waiting, vetoed, dropped, called };

  bool is_point_to_point() const { return tutti::is_pair(collective_.kind); }
  int64_t output_count() const {
    const auto rank = static_cast<size_t>(backend_.mesh_->rank);
    return collective_.send_counts[collective_.kind == CollectiveKind::reduce_scatter ? rank : 0];
  }
  void finish() {
    if (!reduces(collective_.kind)) return;
    if (edges_.drain)
      edges_.drain(edges_.self, {0, output_count()}, collective_.output, scale_);
    else if (!scale_.is_one() && (collective_.kind != CollectiveKind::reduce ||
                                  collective_.root == backend_.mesh_->rank))
      scale(collective_.dtype, collective_.output, output_count(), scale_);
  }

  GlooBackend& backend_;
  Collective collective_;
  const uint64_t tag_;
  const int peer_;
  Edges edges_;
  Scale scale_;
  Stage stage_ = Stage::waiting;
  bool is_cancelled_ = false;
  Worker::Job job_;
  std::optional<Error> failure_;
};

bool GlooBackend::progress() {
  if (slept_) {
    slept_ = may_sleep_ = false;
    bell_.silence();
  }
  bool moved = has_news_.exchange(false);
  moved |= rest_->progress();
  moved |= sequencer_.progress();
  while (const auto call = sequencer_.take()) {
    moved = true;
    const auto found = operations_.find(call->tag);
    if (found != operations_.end()) found->second->on_call(*call);
  }
  return moved;
}

OperationPtr GlooBackend::start(const Collective& collective, const Launch& launch) {
  if (!is_for_gloo(collective, launch.edges) ||
      !capabilities().serves(collective.kind, collective.dtype, collective.op))
    return rest_->start(collective, launch);
  Problem problem;
  problem.kind = collective.kind;
  problem.rank = rest_->transport()->rank();
  problem.size = size_;
  problem.root = collective.root;
  problem.counts = collective.send_counts;
  problem.recv_counts = collective.recv_counts;
  require_valid(problem);
  if (operations_.size() >= kMostOperations)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("more than {} operations wait for the other ranks; wait for some",
                            kMostOperations));
  return OperationPtr(new GlooOperation(*this, collective, launch));
}

// Throws if a score names an algorithm that Gloo does not have.
void check_scores(const Context& context) {
  const Chooser chooser(context.algorithms, context.determinism);
  for (const auto& score : chooser.scores()) {
    const bool is_known =
        score.algorithm == nullptr ||
        (score.kind == CollectiveKind::allreduce &&
         (score.algorithm->name == "ring" || score.algorithm->name == "halving_doubling")) ||
        (context.determinism == Determinism::rank_order && reduces(score.kind));
    if (!is_known)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("TUTTI_ALGORITHMS={}: Gloo has no {} for {} (expected auto{})", score.text,
                      score.algorithm->name, to_string(score.kind),
                      score.kind == CollectiveKind::allreduce ? ", ring or halving_doubling" : ""));
  }
}

std::unique_ptr<Backend> connect(const Context& context) {
  check_scores(context);
  auto rest = make_rest_backend(context, "gloo");
  if (context.size == 1) return rest;
  return std::make_unique<GlooBackend>(context, std::move(rest));
}

std::string version() {
  return fmt::format("{}.{}.{}", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH);
}

}  // namespace

const BackendPlugin tutti_backend_plugin = {
    .name = "gloo",
    .summary = "collectives by Gloo, over its own TCP connections",
    .connect = connect,
    .version = version,
};

}  // namespace tutti
