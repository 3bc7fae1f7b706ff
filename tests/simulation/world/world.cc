#include "tests/simulation/world/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <new>

#include "tests/simulation/world/shared_net.h"
#include "tutti/base/text.h"

namespace tutti::simulation {

SimTraits SimWorld::traits_of(const World& world) {
  SimTraits traits;
  traits.latency = world.latency;
  traits.far = world.far;
  traits.bandwidth = world.bandwidth;
  traits.cannot_cancel = world.cannot_cancel;
  traits.fails_before_reason = world.fails_before_reason;
  traits.works_elsewhere = world.works_elsewhere;
  traits.serves_blocking = world.serves_blocking;
  traits.packs = world.salt % 3 == 0;
  traits.eager_bytes = world.salt % 5 < 2 ? 16 : 1 << 20;
  traits.salt = world.salt;
  return traits;
}

std::unique_ptr<Net> SimWorld::make_net(Events& events, const World& world) {
  if (world.over_memory) return std::make_unique<SharedNet>(events, world);
  if (world.over_streams) return std::make_unique<StreamNet>(events, world);
  return std::make_unique<SimNet>(events, world.size, traits_of(world));
}

SimWorld::SimWorld(const Case& from, bool with_trace)
    : case_(from),
      with_trace_(with_trace),
      began_(events_.now()),
      random_(from.world.salt, 11),
      net_(make_net(events_, from.world)) {
  record().ranks.resize(static_cast<size_t>(from.world.size));
  for (const auto& fault : from.faults) troubles_.push_back({fault});
  for (int rank = 0; rank < from.world.size; ++rank)
    ranks_.push_back(std::make_unique<SimRank>(*this, rank));
}

SimWorld::~SimWorld() = default;

namespace {

/// Records failed allocations while it exists.
class MemoryWatch {
 public:
  explicit MemoryWatch(bool& ran_out) {
    ran_out_ = &ran_out;
    before_ = std::set_new_handler([] {
      *ran_out_ = true;
      throw std::bad_alloc();
    });
  }
  ~MemoryWatch() { std::set_new_handler(before_); }

 private:
  static inline bool* ran_out_ = nullptr;
  std::new_handler before_ = nullptr;
};

}  // namespace

Outcome SimWorld::run() {
  const MemoryWatch watch(record().memory_ran_out);
  std::vector<bool> starts(ranks_.size(), true);
  for (auto& trouble : troubles_) {
    auto& fault = trouble.fault;
    if (fault.kind == Fault::Kind::abandons) {
      starts[static_cast<size_t>(fault.rank)] = false;
      if (case_.world.heals_at > 0) fault.at = std::min(fault.at, case_.world.heals_at);
      fault.event = fault.phase = -1;
    }
    if (fault.event < 0 && fault.phase < 0)
      events_.at(time_of(fault.at), [this, &trouble] { begin(trouble); });
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (starts[rank]) ranks_[rank]->start();
  if (case_.world.heals_at > 0)
    events_.at(time_of(case_.world.heals_at), [this] {
      net_->heal();
      for (auto& rank : ranks_) rank->heal();
    });
  // Streams need more events, one for each piece.
  const uint64_t most_events = case_.world.over_streams ? 5'000'000 : 200'000;
  const auto last = time_of(case_.world.heals_at + 600 * kSecond);
  uint64_t events = 0;
  while (!is_stopped_ && events_.next() <= last && events < most_events && events_.run_next())
    ++events;
  record().hit_the_limit = !events_.empty();
  if (net_->damaged) record().damaged = micros_of(*net_->damaged);
  for (auto& rank : ranks_) rank->look_back();
  record().faults |= net_->faults;
  record().sights = net_->sights;
  for (auto& promise : net_->broken_promises) record().broken_promises.push_back(promise);
  return std::move(outcome_);
}

// --- faults -------------------------------------------------------------------------------------

SimWorld::Time SimWorld::end_of(const Fault& fault) const {
  const auto end = events_.now() + std::chrono::microseconds(std::max<Micros>(fault.length, 1));
  if (case_.world.heals_at == 0) return end;
  return std::max(events_.now(), std::min(end, time_of(case_.world.heals_at)));
}

const Fault* SimWorld::fault(Fault::Kind kind, int rank, std::optional<int64_t> call) {
  if (case_.world.heals_at > 0 && micros() >= case_.world.heals_at) return nullptr;
  for (auto& trouble : troubles_) {
    const auto& one = trouble.fault;
    if (one.kind != kind || one.rank != rank || !trouble.has_begun || trouble.is_over) continue;
    const bool is_of_number = call && one.event < 0 && one.phase < 0;
    if (is_of_number && one.amount != *call) continue;
    trouble.is_over = call.has_value();
    happens(kind);
    return &one;
  }
  return nullptr;
}

void SimWorld::on_step(int rank, uint64_t step) {
  for (auto& trouble : troubles_)
    if (trouble.fault.rank == rank && trouble.fault.event >= 0 &&
        static_cast<uint64_t>(trouble.fault.event) == step)
      begin(trouble);
}

void SimWorld::on_phase(int phase) {
  const unsigned bit = 1u << phase;
  if ((phases_seen_ & bit) != 0) return;
  phases_seen_ |= bit;
  for (auto& trouble : troubles_)
    if (trouble.fault.phase == phase && trouble.fault.event < 0)
      events_.after(std::chrono::microseconds(trouble.fault.at),
                    [this, &trouble] { begin(trouble); });
}

void SimWorld::begin(Trouble& trouble) {
  trouble.has_begun = true;
  apply(trouble.fault);
}

void SimWorld::apply(const Fault& fault) {
  if (case_.world.heals_at > 0 && micros() > case_.world.heals_at) return;
  using Kind = Fault::Kind;
  note(fault.rank, "fault", static_cast<uint64_t>(fault.kind));
  switch (fault.kind) {
    case Kind::kill:
      if (rank(fault.rank).is_killed()) return;
      if (!rank(fault.rank).is_over()) happens(fault.kind);
      rank(fault.rank).kill();
      record_death(fault.rank);
      break;
    case Kind::stop:
    case Kind::jump:
      if (!rank(fault.rank).is_killed() && !rank(fault.rank).is_over()) happens(fault.kind);
      rank(fault.rank).stand_still(end_of(fault), fault.kind == Kind::jump);
      break;
    case Kind::reset:
      net_->reset(fault.rank, fault.peer);
      break;
    case Kind::half_open:
      net_->half_open(fault.rank, fault.peer, end_of(fault));
      break;
    case Kind::delay:
      net_->delay(fault.rank, fault.peer, fault.amount);
      break;
    case Kind::clog:
      net_->clog(fault.rank, fault.peer, end_of(fault));
      break;
    case Kind::slow_link:
      net_->slow(fault.rank, fault.peer, std::max<int64_t>(fault.amount, 1));
      break;
    case Kind::damage:
      net_->damage(fault.rank, fault.peer, fault.amount);
      break;
    case Kind::abandons:
      if (rank(fault.rank).is_killed()) return;
      happens(fault.kind);
      rank(fault.rank).abandon();
      break;
    default:
      break;  // checked where it has its effect
  }
}

void SimWorld::record_death(int number) {
  if (!case_.world.has_launcher) return;
  using Kind = Fault::Kind;
  auto when = events_.now() + std::chrono::microseconds(random_.between(100, 30000));
  bool is_missing = false;
  for (const auto& fault : case_.faults) {
    const bool is_record = fault.kind == Kind::record_late || fault.kind == Kind::record_missing ||
                           fault.kind == Kind::record_of_other;
    if (fault.rank != number || !is_record) continue;
    happens(fault.kind);
    if (fault.kind == Kind::record_late) when += std::chrono::microseconds(fault.length);
    is_missing |= fault.kind == Kind::record_missing;
    if (fault.kind != Kind::record_of_other) continue;
    Death other;
    other.who = {number, 1};
    other.signal = SIGKILL;
    deaths_.emplace_back(events_.now(), other);
  }
  if (is_missing) return;
  Death death;
  death.who = {number, 0};
  death.pid = rank(number).pid();
  death.signal = SIGKILL;
  deaths_.emplace_back(when, death);
}

std::vector<Death> SimWorld::deaths() const {
  std::vector<Death> known;
  for (const auto& [when, death] : deaths_)
    if (when <= events_.now()) known.push_back(death);
  return known;
}

// --- the trace ----------------------------------------------------------------------------------

void SimWorld::mix(uint64_t value) { outcome_.hash = Random::mix(outcome_.hash ^ value) + value; }

void SimWorld::note(int rank, std::string_view what, uint64_t number) {
  mix(static_cast<uint64_t>(micros()) << 8 | static_cast<uint64_t>(rank));
  mix(hash_bytes(std::as_bytes(std::span(what)), 5) + number);
  if (with_trace_)
    outcome_.trace += fmt::format("{:>9} rank {} {} {}\n", micros(), rank, what, number);
}

void SimWorld::note(int rank, std::string_view what, std::string_view text) {
  mix(static_cast<uint64_t>(micros()) << 8 | static_cast<uint64_t>(rank));
  mix(hash_bytes(std::as_bytes(std::span(what)), 5));
  mix(hash_bytes(std::as_bytes(std::span(text)), 7));
  if (with_trace_)
    outcome_.trace += fmt::format("{:>9} rank {} {} {}\n", micros(), rank, what, text);
}

Outcome run(const Case& from, bool with_trace) { return SimWorld(from, with_trace).run(); }

}  // namespace tutti::simulation
