// The shell around the node: when it steps, sleeps and wakes up, as the engine's threads do.

#include "tests/simulation/world/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "tests/simulation/world/world.h"
#include "tutti/core/agreement/messages.h"

namespace tutti::simulation {

namespace {

// The longest time between two steps of a busy rank if ranks share memory.
constexpr auto kLongestTurn = std::chrono::nanoseconds(2000);

double seconds(Micros micros) { return static_cast<double>(micros) / kSecond; }

}  // namespace

SimRank::SimRank(SimWorld& world, int rank)
    : world_(world),
      rank_(rank),
      random_(world.from().world.salt, 100 + static_cast<uint64_t>(rank)),
      timeline_(rank, false),
      entries_(1024) {
  const auto& of = world.from().world;
  options_.rank = rank;
  options_.size = of.size;
  options_.launcher = "explicit";
  options_.fusion_bytes = of.fusion_bytes;
  options_.partition_bytes = of.partition_bytes;
  options_.cache_capacity = of.cache_capacity;
  options_.replay_after = of.replay_after;
  options_.peer_timeout = seconds(of.peer_timeout);
  options_.operation_timeout = seconds(of.operation_timeout);
  options_.stall_warning = seconds(of.stall_warning);
  options_.observer = [this](std::string_view point) { observe(point); };
  if (of.salt % 8 == 3) options_.timeline = "timeline";
  context_.name = "simulated";
  context_.rank = rank;
  context_.size = of.size;
  for (int peer = 0; peer < of.size; ++peer) {
    Place place;
    // Some worlds are one host, some are several.
    const bool is_one_host = of.over_memory || of.salt % 2 == 0;
    place.host = place.host_name = is_one_host ? "a" : fmt::format("host{}", peer / 2);
    place.machine = place.host;
    place.pid = 100 + peer;
    place.world_rank = peer;
    context_.places.push_back(std::move(place));
  }
  if (of.over_streams) {
    context_.executor.segment_bytes = of.segment_bytes;
    // A closing rank waits until a slow link has sent everything.
    options_.close_timeout = 60;
  }
  EndHooks hooks;
  hooks.on_wake = [this] { on_backend_wake(); };
  hooks.on_start = [this](const Collective& collective, const Launch& launch) {
    return on_start(collective, launch);
  };
  hooks.on_post = [this](int to, std::span<const std::byte> message) { on_post(to, message); };
  end_ = world.net().make_backend(rank, context_, std::move(hooks));
  if (!options_.timeline.empty()) timeline_.start();
  node_ =
      std::make_unique<Node>(options_, context_, Node::Ports{*end_, *this, timeline_, counting_});
  int number = 0;
  for (const auto& script : world.from().ranks.at(static_cast<size_t>(rank))) {
    threads_.emplace_back();
    threads_.back().script = &script;
    threads_.back().number = number++;
  }
}

SimRank::~SimRank() {
  call_.reset();
  node_.reset();
}

void SimRank::start() {
  node_->start();
  note_phase();
  plan_turn(world_.events().now());
  for (auto& thread : threads_) resume(thread, std::chrono::microseconds(random_.between(0, 200)));
}

// --- turns --------------------------------------------------------------------------------------

int SimRank::drivers() const {
  int count = call_ ? 1 : 0;
  for (const auto& thread : threads_) count += thread.waits && !thread.awaited.back()->done();
  return count;
}

void SimRank::plan_turn(Time when) {
  is_asleep_ = false;
  if (is_over_ || is_killed_) return;
  if (is_turn_planned_) {
    wants_turn_ = true;
    return;
  }
  is_turn_planned_ = true;
  world_.events().at(when, [this] { turn(); });
}

bool SimRank::is_standing_still() const { return world_.events().now() < frozen_until_; }

void SimRank::turn() {
  is_turn_planned_ = false;
  if (is_over_ || is_killed_) return;
  const auto now = world_.events().now();
  const auto until = std::max(frozen_until_, steps_frozen_until_);
  if (now < until) return plan_turn(until);
  world_.on_step(rank_, ++steps_);
  if (is_killed_) return;
  if (now < std::max(frozen_until_, steps_frozen_until_))
    return plan_turn(std::max(frozen_until_, steps_frozen_until_));
  if (is_leaving_) return leave();
  const bool had_drivers = drivers() > 0;
  // A finished blocking call releases the node before another step. A closing rank makes a step.
  bool moved = is_closing_;
  if (!call_ || poll_call())
    moved = step();
  else if (drivers() > 0)
    moved = true;  // another thread has the token now and begins with a step
  if (is_killed_) return;
  // Threads whose Works are done go on.
  for (auto& thread : threads_)
    if (thread.waits && thread.awaited.back()->done())
      resume(thread, std::chrono::microseconds(random_.between(0, 3)));
  if (!moved && world_.from().world.over_memory && random_.chance(300))
    return rest_later(had_drivers);
  rest(moved, had_drivers);
}

// Ranks that share memory take turns in any order.
SimRank::Time SimRank::next_turn() {
  const auto now = world_.events().now();
  if (!world_.from().world.over_memory) return now;
  return now + std::chrono::nanoseconds(random_.between(0, kLongestTurn.count()));
}

// Between the last check of this rank and its sleep, peers may write without waking it.
void SimRank::rest_later(bool had_drivers) {
  is_turn_planned_ = true;
  wants_turn_ = false;
  world_.events().after(std::chrono::nanoseconds(random_.between(0, 3000)), [this, had_drivers] {
    is_turn_planned_ = false;
    if (is_over_ || is_killed_) return;
    if (wants_turn_ || is_standing_still()) return plan_turn(world_.events().now());
    rest(false, had_drivers);
  });
}

bool SimRank::step() {
  const auto now = world_.events().now();
  const bool has_input = rung_ || woken_ || is_due_;
  const auto& scheduler = node_->scheduler();
  // Over streams, bytes may arrive at the very time of a check, so those worlds are left out.
  const bool is_look = is_due_ && !rung_ && !woken_ && !world_.from().world.over_streams &&
                       std::min(scheduler.next_deadline(), scheduler.next_look()) > now;
  rung_ = woken_ = is_due_ = false;
  fill_batch();
  const bool brings = !batch_.operations.empty() || !batch_.joins.empty() || batch_.deaths;
  const auto phase = node_->phase();
  const auto done = starts_ + static_cast<int64_t>(counting_.operations);
  bool moved = false;
  const bool went_well = guarded([&] { moved = node_->step(batch_, now); });
  note_phase();
  world_.note(rank_, "steps", moved ? 1 : 0);
  const bool has_gone_on = starts_ + static_cast<int64_t>(counting_.operations) != done;
  if (is_look && !brings && has_gone_on && node_->phase() == phase)
    world_.record_of(rank_).went_on_at_a_look = true;
  if (retiring_.may_have_unused() && !node_->blocking().is_waiting()) {
    const auto unused = retiring_.take_unused(entries_.pending());
    world_.record_of(rank_).regions_retired += static_cast<int>(unused.size());
  }
  const auto pause = world_.from().world.over_memory ? kLongestTurn : Clock::duration(0);
  const bool is_vain = !has_input && !brings && now <= last_step_ + pause;
  steps_in_vain_ = is_vain ? steps_in_vain_ + 1 : 0;
  auto& most = world_.record_of(rank_).most_steps_in_vain;
  most = std::max(most, steps_in_vain_);
  last_step_ = now;
  if (steps_in_vain_ > 3000) world_.stop();
  return moved || !went_well;
}

void SimRank::fill_batch() {
  batch_.operations.clear();
  batch_.joins.clear();
  batch_.is_told = is_told_;
  if (asks_ && deaths_) batch_.deaths = std::move(deaths_);
  deaths_.reset();
  batch_.operations.swap(submitted_);
  batch_.joins.swap(joins_);
  submitted_bytes_ = quiet_bytes_ = 0;
  for (auto& region : retired_) retiring_.add(std::move(region));
  retired_.clear();
  if (is_closing_ && !batch_.closes) {
    batch_.closes = true;
    batch_.error = closing_error_;
  }
}

// The thread that has made a step rests or makes another one.
void SimRank::rest(bool moved, bool had_drivers) {
  if (is_closing_) {
    if (drivers() == 0 && node_->phase() == Phase::over) return end_close();
    if (moved || !node_->arm()) return plan_turn(next_turn());
    return sleep(node_->wake_at());
  }
  if (drivers() > 0) {
    if (moved) return plan_turn(next_turn());
    auto due = node_->wake_at_for_driver();
    if (call_ && call_->failed_since)
      due = std::min(due, node_->hears_no_more_at(*call_->failed_since));
    if (!node_->arm()) return plan_turn(next_turn());
    return sleep(due);
  }
  if (had_drivers) return leave_to_background();
  bool armed = false;
  guarded([&] {
    armed = !moved && node_->arm() && submitted_.empty();
    if (!armed) return;
    quiet_bytes_ = node_->scheduler().bytes_awaited();
    quiet_plan_ = node_->scheduler().plan_id();
    background_due_ = node_->wake_at();
    options_.observe("idle");
  });
  if (!armed) return plan_turn(next_turn());
  sleep(background_due_);
}

// The background thread sleeps until the time that it set before another thread drove the node.
void SimRank::leave_to_background() {
  const bool armed = node_->arm();
  const auto now = world_.events().now();
  const bool is_parked = background_due_ <= now;
  if (!armed || node_->can_go_on() || is_closing_ || is_parked ||
      node_->wake_at() < background_due_)
    return plan_turn(now);
  sleep(background_due_);
}

void SimRank::sleep(Time due) {
  const auto now = world_.events().now();
  // The bell rang meanwhile, so there is no sleep.
  if (rung_ || woken_) return plan_turn(now);
  is_asleep_ = true;
  const uint64_t number = ++sleeps_;
  world_.note(rank_, "sleeps");
  if (due == Time::max()) return;
  // The poller counts whole milliseconds, rounded up.
  const auto whole = std::chrono::ceil<std::chrono::milliseconds>(std::max(due - now, {}));
  world_.events().at(now + whole, [this, number, is_later = due > now] {
    if (!is_asleep_ || sleeps_ != number) return;
    is_due_ |= is_later;
    plan_turn(world_.events().now());
  });
}

void SimRank::ring() {
  rung_ = true;
  if (is_asleep_)
    plan_turn(world_.events().now() + std::chrono::microseconds(random_.between(0, 5)));
}

void SimRank::on_backend_wake() {
  woken_ = true;
  if (is_asleep_)
    plan_turn(world_.events().now() + std::chrono::microseconds(random_.between(0, 5)));
}

void SimRank::end_close() {
  entries_.drop_works();
  if (!node_->may_say_goodbye()) return be_over();
  is_leaving_ = true;
  leaves_by_ = world_.events().now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(options_.close_timeout));
  world_.net().begin_goodbye(rank_);
  leave();
}

// Waits until everything has arrived, like the goodbye of StreamTransport.
void SimRank::leave() {
  const auto now = world_.events().now();
  rung_ = woken_ = is_due_ = false;
  if (world_.net().is_flushed(rank_) || now >= leaves_by_) return be_over();
  const bool moved = end_->progress();
  if (world_.net().is_flushed(rank_)) return be_over();
  if (moved || !end_->arm()) return plan_turn(now);
  const auto next_look = now + std::chrono::milliseconds(2);
  sleep(world_.net().is_written(rank_) ? std::min(next_look, leaves_by_) : leaves_by_);
}

void SimRank::be_over() {
  is_over_ = true;
  world_.net().end(rank_);
  world_.record_of(rank_).over = world_.micros();
  world_.note(rank_, "is over");
}

// --- faults -------------------------------------------------------------------------------------

void SimRank::kill() {
  is_killed_ = true;
  world_.record_of(rank_).killed = world_.micros();
  world_.net().kill(rank_);
}

void SimRank::abandon() {
  node_->abandon();
  note_phase();
  kill();
}

void SimRank::stand_still(Time until, bool only_steps) {
  (only_steps ? steps_frozen_until_ : frozen_until_) = until;
  world_.record_of(rank_).stopped.emplace_back(world_.micros(), world_.micros_of(until));
}

void SimRank::heal() {
  frozen_until_ = std::min(frozen_until_, world_.events().now());
  steps_frozen_until_ = std::min(steps_frozen_until_, world_.events().now());
}

void SimRank::observe(std::string_view) {
  if (world_.fault(Fault::Kind::throws_in_observer, rank_, ++observations_) != nullptr)
    throw std::runtime_error("the observer throws");
}

// Records how this rank takes part in a bucket. A gate starts before its bucket, with the next tag;
// the first start of the two counts.
void SimRank::note_bucket(const Launch& launch) {
  const uint64_t plan = launch.tag >> kQueueTagBits;
  const uint64_t sequence = (launch.tag - (plan << kQueueTagBits)) / 2;
  auto& buckets = world_.record_of(rank_).buckets;
  const bool is_known = std::ranges::any_of(
      buckets.rbegin(), buckets.rend(),
      [&](const BucketRecord& known) { return known.plan == plan && known.sequence == sequence; });
  if (!is_known) buckets.push_back({world_.micros(), plan, sequence, launch.verdict != 0});
}

bool SimRank::on_start(const Collective& collective, const Launch& launch) {
  ++starts_;
  auto& record = world_.record_of(rank_);
  constexpr int kBlocking = 2;
  const bool is_pair =
      collective.kind == CollectiveKind::send || collective.kind == CollectiveKind::recv;
  const bool is_planned = launch.tag >> kQueueTagBits != 0;
  if (is_planned && !is_pair && launch.queue != kBlocking) note_bucket(launch);
  // An operation behind a gate starts when the gate opens, without an order among others.
  const bool is_gated = is_planned && launch.queue == kNoQueue;
  if (!is_gated && !(is_pair && launch.queue == kBlocking)) {
    const uint64_t queue = launch.queue == kBlocking ? 1002 : is_planned ? 1001 : 0;
    const std::string names(is_pair ? "pair" : to_string(collective.kind));
    record.starts.push_back(
        {world_.micros(), queue, launch.tag, queue == 1002 ? "blocking" : names});
  }
  world_.note(rank_, "starts", launch.tag);
  if (const auto* fault = world_.fault(Fault::Kind::throws_in_start, rank_, starts_)) {
    if (fault->peer == 0) throw std::bad_alloc();
    throw std::runtime_error("start throws");
  }
  return world_.fault(Fault::Kind::operation_fails, rank_, starts_) != nullptr;
}

void SimRank::on_post(int to, std::span<const std::byte> message) {
  note_phase();
  auto& record = world_.record_of(rank_);
  const auto type = static_cast<MessageType>(message[0]);
  ++record.messages.at(static_cast<size_t>(type));
  world_.note(
      rank_, "posts",
      static_cast<uint64_t>(message[0]) << 32 | static_cast<uint64_t>(to) << 24 | message.size());
  switch (type) {
    case MessageType::requests:
    case MessageType::answers:
      ++record.negotiation_messages;
      [[fallthrough]];
    case MessageType::resend:
    case MessageType::plan_joined:
    case MessageType::plan_failed:
    case MessageType::plan_left:
    case MessageType::veto:
    case MessageType::pair_left:
    case MessageType::pair_recalled:
      if (record.farewell != kNever) ++record.operation_messages_after_farewell;
      break;
    case MessageType::ping:
      // Rank 0 watches the names of all ranks, so it may ping for another rank's operation.
      if (rank_ != 0 && open_.empty() && !call_ && node_->scheduler().runs().empty())
        record.idle_pings.push_back(world_.micros());
      break;
    case MessageType::leaving:
      if (record.farewell == kNever) record.farewell = world_.micros();
      break;
    default:
      break;
  }
}

void SimRank::note_phase() {
  if (!node_) return;
  const auto phase = node_->phase();
  if (phase == phase_) return;
  world_.record_of(rank_).phases.push_back({static_cast<int>(phase_), static_cast<int>(phase)});
  world_.note(rank_, "is", to_string(phase));
  phase_ = phase;
  world_.on_phase(static_cast<int>(phase));
}

// --- exceptions ---------------------------------------------------------------------------------

void SimRank::break_down() noexcept {
  const auto error = node_->error_of_exception();
  world_.note(rank_, "throws", std::string_view(error.what()));
  node_->on_thrown(error);
  note_phase();
  ring();
}

// --- the end of the world -----------------------------------------------------------------------

void SimRank::look_back() {
  is_past_ = true;
  auto& record = world_.record_of(rank_);
  if (!is_killed_) {
    const bool waits = drivers() > 0 || (is_closing_ && !is_over_) || node_->pending();
    record.sleeps_with_something_pending = waits && !is_over_;
    record.entries_left = static_cast<int>(entries_.pending().size());
    record.runs_left = static_cast<int>(node_->scheduler().runs().size());
    record.allreduces_counted = counting_.tensors;
    record.blocking_counted = node_->blocking().over();
    record.pairs_counted = node_->blocking().pairs();
  }
  for (auto& use : uses_) {
    if (!use.is_over || use.out == nullptr) continue;
    const std::span<const std::byte> out(use.out, use.out_bytes);
    if (!std::ranges::equal(out, use.final_out)) record_of(use).touched_after_end = true;
  }
  call_.reset();
  if (is_killed_) return;
  node_.reset();
  region_.reset();
  memory_.reset();
  retired_.clear();
  retiring_ = Retired();
  kept_memory_.clear();
  record.runs_left += static_cast<int>(world_.net().operations_left(rank_));
  record.regions_left = static_cast<int>(world_.net().regions_left(rank_));
  record.memory_written_late = world_.net().is_written_late(rank_);
  record.tickets_left = static_cast<int>(world_.net().tickets_left(rank_));
}

}  // namespace tutti::simulation
