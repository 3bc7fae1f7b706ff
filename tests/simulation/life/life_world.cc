#include "tests/simulation/life/life_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "tutti/core/meeting/rounds.h"
#include "tutti/core/membership/membership.h"

namespace tutti::simulation {

using simulated::CommunicatorState;

namespace {

constexpr int kMostTries = 8;
constexpr double kShrinkSeconds = 120;
// The most seconds that an operation may take: more than any fault lasts.
constexpr double kMostOperation = 400;
constexpr int64_t kMostTurns = 2'000'000;

thread_local World* the_world = nullptr;

// Returns the seconds after which the others report a silent peer.
double silence(const LifeCase& from) { return 1.25 * from.peer_timeout; }

}  // namespace

World& World::current() { return *the_world; }

World::World(const LifeCase& from, bool with_trace)
    : case_(from),
      fibers_(from.salt),
      store_(fibers_, {.latency = from.latency, .longest = from.longest, .polls = from.polls},
             from.salt),
      random_(from.salt, 79),
      begin_(fibers_.now()),
      came_(from.faults.size()),
      with_trace_(with_trace) {}

LifeRecord World::run() {
  the_world = this;
  store_.on_call = [this](Fibers::Task& task) {
    for (auto& process : processes_) {
      if (process.task != &task) continue;
      ++process.calls;
      for (size_t i = 0; i < case_.faults.size(); ++i)
        if (case_.faults[i].when == LifeFault::When::calls &&
            case_.faults[i].rank == process.who.rank && case_.faults[i].calls <= process.calls)
          come(i);
    }
  };
  for (int rank = 0; rank < case_.size; ++rank)
    start({.rank = rank},
          begin_ +
              Fibers::to_duration(case_.spread * static_cast<double>(random_.below(1000)) / 1000));
  for (size_t i = 0; i < case_.faults.size(); ++i)
    if (case_.faults[i].when == LifeFault::When::at) begin_fault(i);
  try {
    fibers_.run(kMostTurns);
  } catch (const std::runtime_error& error) {
    record_.broken_rules.push_back(error.what());
  }
  record_.ended = seconds();
  record_.keys = store_.values().size();
  for (const auto& value : store_.values()) record_.keys_left.push_back(value.first);
  the_world = nullptr;
  return std::move(record_);
}

void World::note(const std::string& line) {
  if (!with_trace_) return;
  trace_ += fmt::format("{:12.6f} {}\n", seconds(), line);
}

// --- processes ----------------------------------------------------------------------------------

World::Process& World::me() {
  for (auto& process : processes_)
    if (process.task == &fibers_.current()) return process;
  throw std::logic_error("no process runs");
}

World::Process* World::living(int rank) {
  for (auto& process : processes_)
    if (process.who.rank == rank && record_of(process).ended == kNever) return &process;
  return nullptr;
}

void World::start(LaunchedRank who, Fibers::Time when) {
  auto& process = processes_.emplace_back();
  process.number = record_.processes.size();
  process.who = who;
  record_.processes.push_back(
      {.who = who, .began = std::chrono::duration<double>(when - begin_).count()});
  process.task = &fibers_.start([this, &process] { live(process); }, when);
}

// Runs the program of a rank until it has done all steps or gives up.
void World::live(Process& process) {
  State state;
  int next = 0;
  note(fmt::format("rank {}.{} starts", process.who.rank, process.who.incarnation));
  try {
    while (!go_through(process, state, next))
      if (!recover(process, state)) break;
    state = nullptr;
  } catch (const std::exception& error) {
    if (!process.task->is_ghost())
      record_.broken_rules.push_back(
          fmt::format("rank {} threw: {}", process.who.rank, error.what()));
  }
  if (process.task->is_ghost()) return;
  auto& record = record_of(process);
  note(fmt::format("rank {}.{} ends, {}", process.who.rank, process.who.incarnation,
                   record.finished ? "finished" : record.why));
  end_process(process, 0);
}

// Runs steps until one fails. Returns true at the end of the program.
bool World::go_through(Process& process, State& state, int& next) {
  std::string path;  // of the current communicator
  try {
    while (true) {
      if (process.task->is_ghost()) return true;
      if (!state) {
        ++record_of(process).tries;
        Options options;
        options.rank = process.who.rank;
        options.size = case_.size;
        options.incarnation = process.who.incarnation;
        options.launcher = "simulation";
        options.host = fmt::format("host{}", process.number);
        options.backend = "tcp";
        options.connect_timeout = case_.connect_timeout;
        options.peer_timeout = case_.peer_timeout;
        options.log = [](LogLevel, std::string_view) {};
        state = make(Call::Kind::create, nullptr, case_.connect_timeout,
                     [&] { return create(options); });
        record_of(process).was_in = true;
        record_of(process).tries = 0;
      }
      // The ranks of a new communicator continue with the step of the first rank that arrives.
      if (auto& link = state->engine->link(); link.path != path) {
        path = link.path;
        if (link.next_step < 0) link.next_step = next;
        next = link.next_step;
      }
      if (next >= static_cast<int>(case_.steps.size())) {
        meet(state);
        record_of(process).finished = true;
        return true;
      }
      step(state, case_.steps[static_cast<size_t>(next)]);
      ++next;
    }
  } catch (const Error& error) {
    record_of(process).why = error.what();
    note(fmt::format("rank {} sees: {}", process.who.rank, error.what()));
    return false;
  }
}

// Makes another communicator after an error. Returns false if this rank gives up.
bool World::recover(Process& process, State& state) {
  if (process.task->is_ghost()) return false;
  if (process.shrink_failed && !case_.starts_again) return false;
  if (state && !state->engine->broken()) {
    // The program ends the communicator with its error, which the others receive.
    break_link(state->engine->link(), state->options.rank, ErrorCode::timeout);
  }
  if (case_.starts_again || !state) {
    state = nullptr;
    return record_of(process).tries < (case_.starts_again ? kMostTries : 2);
  }
  try {
    State parent = std::move(state);
    state = make(Call::Kind::shrink, parent, kShrinkSeconds,
                 [&] { return shrink(*parent, Deadline::after(kShrinkSeconds)); });
    return true;
  } catch (const Error& error) {
    record_of(process).why = error.what();
    note(fmt::format("rank {} gives up: {}", process.who.rank, error.what()));
    return false;
  }
}

void World::step(State& state, const LifeStep& step) {
  switch (step.kind) {
    case LifeStep::Kind::work:
      fibers_.sleep(step.seconds * (0.5 + static_cast<double>(random_.below(1000)) / 1000));
      meet(state);
      break;
    case LifeStep::Kind::split: {
      meet(state);
      std::vector<SplitChoice> choices;
      for (int rank = 0; rank < state->options.size; ++rank)
        choices.push_back({.color = step.colors[static_cast<size_t>(rank) % step.colors.size()]});
      const int number = state->splits++;
      const auto part = make(Call::Kind::split, state, case_.connect_timeout,
                             [&] { return split(*state, number, choices); });
      if (part) meet(part);
      break;
    }
    case LifeStep::Kind::shrink: {
      meet(state);
      const State parent = state;
      state = make(Call::Kind::shrink, parent, kShrinkSeconds,
                   [&] { return shrink(*parent, Deadline::after(kShrinkSeconds)); });
      break;
    }
    case LifeStep::Kind::renew:
      meet(state);
      state = nullptr;
      break;
  }
}

// Makes a call and records its result.
World::State World::make(Call::Kind kind, const State& parent, double limit,
                         const std::function<State()>& call) {
  auto& process = me();
  const size_t number = record_.calls.size();
  auto& begun = record_.calls.emplace_back();
  begun.kind = kind;
  begun.process = static_cast<int>(process.number);
  begun.began = seconds();
  begun.limit = limit;
  const auto launched = [&](int rank) {
    if (!parent || rank < 0) return rank;
    const auto& places = parent->engine->context().places;
    return static_cast<size_t>(rank) < places.size() ? places[static_cast<size_t>(rank)].world_rank
                                                     : rank;
  };
  if (parent)
    for (const auto& place : parent->engine->context().places)
      begun.candidates.push_back({place.world_rank, place.incarnation});
  if (parent && kind == Call::Kind::shrink)
    if (const int gone = parent->engine->gone_rank(); gone >= 0 && gone != parent->options.rank)
      begun.given_up.push_back(launched(gone));
  const int64_t before = store_.calls();
  const auto end = [&]() -> Call& {
    auto& record = record_.calls[number];
    record.ended = process.task->is_ghost() ? kNever : seconds();
    record.store_calls = store_.calls() - before;
    return record;
  };
  try {
    auto made = call();
    auto& record = end();
    record.well = true;
    if (made)
      for (const auto& place : made->engine->context().places)
        record.members.push_back({place.world_rank, place.incarnation});
    return made;
  } catch (const Error& error) {
    auto& record = end();
    record.code = error.code();
    record.rank = launched(error.rank());
    record.text = error.what();
    process.shrink_failed |= kind == Call::Kind::shrink;
    throw;
  }
}

// Ends a process that finished or was killed. Its launcher records that, and may start it again.
void World::end_process(Process& process, int signal) {
  auto& record = record_of(process);
  if (record.ended != kNever) return;
  record.ended = seconds();
  const bool was_killed = signal != 0;
  if (was_killed) {
    record.died = seconds();
    note(fmt::format("rank {}.{} is killed", process.who.rank, process.who.incarnation));
    fibers_.kill(*process.task);
  }
  for (auto& [path, link] : links_)
    for (size_t rank = 0; rank < link.members.size(); ++rank)
      if (link.members[rank] == process.who && !link.left[rank])
        break_link(link, static_cast<int>(rank), ErrorCode::peer_lost);
  fibers_.start([this, &process, signal, was_killed] { write_end(process, signal, was_killed); },
                fibers_.now());
}

void World::write_end(Process& process, int signal, bool was_killed) {
  fibers_.sleep(case_.record_delay * static_cast<double>(random_.below(1000)) / 1000);
  try {
    if (case_.writes_deaths) {
      const auto store = store_.client();
      append_death(*store, {.who = process.who,
                            .pid = 1000 + static_cast<int>(process.number),
                            .signal = signal,
                            .code = was_killed || record_of(process).finished ? 0 : 1,
                            .host = fmt::format("host{}", process.number)});
      note(fmt::format("the end of rank {}.{} is written", process.who.rank,
                       process.who.incarnation));
      for (int i = 0;; ++i) {
        const auto at = store_.values().find(fmt::format("deaths/{}", i));
        if (at == store_.values().end()) break;
        const auto death = decode_death(at->second);
        if (death && death->who == process.who) record_of(process).number_in_log = i;
      }
    }
  } catch (const Error&) {
    // The store has ended.
  }
  if (was_killed && case_.starts_again)
    start({.rank = process.who.rank, .incarnation = process.who.incarnation + 1},
          fibers_.now() +
              Fibers::to_duration(0.001 + static_cast<double>(random_.below(300)) / 1000));
}

// --- the model that replaces the engine ---------------------------------------------------------

// Waits as a backend does, for a slice of time or until the deadline. A failure that another rank
// reported ends the wait, whatever its code.
void World::await_address(Store& store, const Membership& membership, int peer) {
  while (true) {
    const auto slice = case_.slice > 0 ? Deadline::after(case_.slice) : membership.deadline;
    try {
      store.get(fmt::format("address/{}", peer),
                slice.when() < membership.deadline.when() ? slice : membership.deadline);
      return;
    } catch (const ToldError&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
      if (!membership.deadline.passed()) continue;
      throw Error(ErrorCode::timeout, fmt::format("nothing came from rank {}", peer))
          .with_rank(peer);
    }
  }
}

void World::connect(CommunicatorState& state) {
  auto& process = me();
  const auto& options = state.options;
  const auto& membership = state.membership;
  const size_t number = record_.calls.size();
  record_.calls.push_back({.kind = Call::Kind::attempt,
                           .process = static_cast<int>(process.number),
                           .began = seconds(),
                           .path = membership.path});
  const auto end = [&]() -> Call& {
    auto& record = record_.calls[number];
    record.ended = process.task->is_ghost() ? kNever : seconds();
    return record;
  };
  const auto attempt = Attempt::begin(options, membership);
  Context context;
  context.rank = options.rank;
  context.size = options.size;
  context.deadline = membership.deadline;
  try {
    try {
      context.places = attempt->meet();
      const auto store = attempt->store();
      if (std::exchange(process.fails_to_connect, false)) {
        auto& first = record_of(process).failed_to_connect;
        first = std::min(first, seconds());
        throw Error(ErrorCode::io, fmt::format("rank {}: Too many open files", options.rank))
            .with_rank(options.rank);
      }
      store->set(fmt::format("address/{}", options.rank), "here");
      for (int peer = 0; peer < options.size; ++peer) await_address(*store, membership, peer);
      attempt->all_connected();
    } catch (const Error& error) {
      attempt->fail(error);
    }
  } catch (const Error& error) {
    auto& record = end();
    record.code = error.code();
    const int rank = error.rank();
    record.rank = rank >= 0 && static_cast<size_t>(rank) < membership.members.size()
                      ? membership.members[static_cast<size_t>(rank)].rank
                      : rank;
    record.text = error.what();
    // Its connections are closed, also to ranks for which this attempt succeeded.
    abandoned_.insert({membership.path, options.rank});
    if (const auto link = links_.find(membership.path); link != links_.end())
      break_link(link->second, options.rank, ErrorCode::peer_left);
    throw;
  }
  auto& record = end();
  record.well = true;
  for (const auto& place : context.places)
    record.members.push_back({place.world_rank, place.incarnation});
  auto& link = links_[membership.path];
  if (link.members.empty()) {
    link.path = membership.path;
    link.members = record.members;
    link.left.resize(link.members.size());
    link.hears.resize(link.members.size());
    link.operations.resize(link.members.size());
  }
  for (int rank = 0; rank < options.size; ++rank) {
    if (abandoned_.contains({membership.path, rank})) break_link(link, rank, ErrorCode::peer_left);
    for (auto& other : processes_)
      if (other.who == link.members[static_cast<size_t>(rank)] &&
          record_of(other).ended != kNever && !link.left[static_cast<size_t>(rank)])
        break_link(link, rank, ErrorCode::peer_lost);
  }
  state.engine = std::make_shared<simulated::Engine>(*this, link, options.rank, std::move(context));
  note(fmt::format("rank {} is connected in {}", process.who.rank, membership.path));
}

void World::break_link(Link& link, int rank, ErrorCode code) {
  if (link.cause || link.members.size() < 2) return;  // a rank alone has no peer to lose
  link.cause = {.rank = rank, .code = code, .when = fibers_.now()};
  for (auto& hears : link.hears)
    hears = fibers_.now() +
            Fibers::to_duration(case_.hears * static_cast<double>(random_.below(1000)) / 1000);
  // The rank that ends the communicator knows it immediately.
  if (code == ErrorCode::timeout) link.hears[static_cast<size_t>(rank)] = fibers_.now();
  for (auto* task : link.waiting) fibers_.wake(*task);
}

// Returns the error that ended the communicator, as soon as this rank knows it. A rank never learns
// that it is lost itself. It learns that another rank has left.
std::optional<Error> World::heard(const Link& link, int rank) const {
  if (!link.cause || const_cast<Fibers&>(fibers_).now() < link.hears[static_cast<size_t>(rank)])
    return {};
  if (link.cause->rank != rank)
    return Error(link.cause->code, fmt::format("rank {} is lost", link.cause->rank))
        .with_rank(link.cause->rank);
  if (link.cause->code == ErrorCode::timeout)
    return Error(ErrorCode::timeout, "this rank ended it").with_rank(rank);
  const int other = rank == 0 ? 1 : 0;
  return Error(ErrorCode::peer_left, fmt::format("rank {} has left", other)).with_rank(other);
}

void World::leave(Link& link, int rank) {
  if (fibers_.current().is_ghost()) return;  // a ghost was killed, and the others know that already
  link.left[static_cast<size_t>(rank)] = true;
  for (auto* task : link.waiting) fibers_.wake(*task);
}

// Runs an operation of all ranks.
void World::meet(const State& state) {
  auto& link = state->engine->link();
  const int rank = state->options.rank;
  const auto own = static_cast<size_t>(rank);
  const int operation = link.operations[own]++;
  auto& met = link.met[operation];
  met.insert(rank);
  for (auto* task : link.waiting) fibers_.wake(*task);
  const auto end = fibers_.now() + Fibers::to_duration(kMostOperation);
  while (met.size() < link.members.size()) {
    if (const auto error = heard(link, rank)) throw *error;
    for (size_t other = 0; other < link.members.size(); ++other)
      if (link.left[other] && !met.contains(static_cast<int>(other)))
        throw Error(ErrorCode::peer_left, fmt::format("rank {} has left", other))
            .with_rank(static_cast<int>(other));
    if (me().task->is_ghost()) throw Error(ErrorCode::closed, "killed");
    if (fibers_.now() >= end) {
      record_.broken_rules.push_back(
          fmt::format("rank {} waits for ever in {}", me().who.rank, link.path));
      throw Error(ErrorCode::timeout, "an operation takes for ever");
    }
    link.waiting.push_back(me().task);
    fibers_.wait_until(link.cause ? std::min(link.hears[own], end) : end);
    std::erase(link.waiting, me().task);
  }
  fibers_.sleep(case_.latency);
}

// --- faults -------------------------------------------------------------------------------------

void World::begin_fault(size_t number) {
  fibers_.start([this, number] { come(number); },
                fibers_.now() + Fibers::to_duration(case_.faults[number].at));
}

void World::come(size_t number) {
  if (came_[number]) return;
  came_[number] = true;
  const auto& fault = case_.faults[number];
  if (number + 1 < case_.faults.size() && case_.faults[number + 1].when == LifeFault::When::after)
    begin_fault(number + 1);
  auto* process = living(fault.rank);
  switch (fault.kind) {
    case LifeFault::Kind::kill:
      if (process != nullptr) end_process(*process, 9);
      break;
    case LifeFault::Kind::stop: {
      if (process == nullptr) break;
      const auto until = fibers_.now() + Fibers::to_duration(fault.seconds);
      record_of(*process).stops.emplace_back(seconds(), seconds() + fault.seconds);
      note(fmt::format("rank {} is stopped for {} s", fault.rank, fault.seconds));
      fibers_.hold(*process->task, until);
      if (fault.seconds <= silence(case_)) break;
      const auto who = process->who;
      fibers_.start(
          [this, who] {
            for (auto& [path, link] : links_)
              for (size_t rank = 0; rank < link.members.size(); ++rank)
                if (link.members[rank] == who && !link.left[rank])
                  break_link(link, static_cast<int>(rank), ErrorCode::peer_silent);
          },
          fibers_.now() + Fibers::to_duration(silence(case_)));
      break;
    }
    case LifeFault::Kind::fail_to_connect:
      if (process != nullptr) process->fails_to_connect = true;
      break;
    case LifeFault::Kind::slow_store:
      record_.slow_until = seconds() + 5;
      record_.slow_by = fault.seconds;
      store_.be_slow(fibers_.now() + std::chrono::seconds(5), fault.seconds);
      break;
    case LifeFault::Kind::store_ends:
      record_.store_ended = std::min(record_.store_ended, seconds());
      store_.end();
      break;
  }
}

}  // namespace tutti::simulation

// --- the interface that membership.cc uses ------------------------------------------------------

namespace tutti::simulated {

std::shared_ptr<Inheritance> SplitBackend::split(const Context& context, int, int) {
  if (!meets_) return nullptr;
  context.store->set(fmt::format("part/{}", context.rank), "here");
  for (int rank = 0; rank < context.size; ++rank)
    context.store->get(fmt::format("part/{}", rank), context.deadline);
  return nullptr;
}

Engine::Engine(simulation::World& world, simulation::Link& link, int rank, Context context)
    : world_(world),
      link_(link),
      rank_(rank),
      context_(std::move(context)),
      backend_(world.split_meets()) {}

Engine::~Engine() { world_.leave(link_, rank_); }

std::optional<Error> Engine::broken() const { return world_.heard(link_, rank_); }

int Engine::gone_rank() const {
  const auto error = broken();
  const bool is_gone =
      error && (error->code() == ErrorCode::peer_lost || error->code() == ErrorCode::peer_silent ||
                error->code() == ErrorCode::peer_left);
  return is_gone ? error->rank() : -1;
}

CommunicatorState::CommunicatorState(Options given, Membership met)
    : options(std::move(given)), membership(std::move(met)) {
  simulation::World::current().connect(*this);
}

}  // namespace tutti::simulated

namespace tutti {

Membership join_job(const Options& options) {
  Membership membership;
  membership.deadline = Deadline::after(options.connect_timeout);
  membership.root = simulation::World::current().store();
  enter_round(options, membership);
  return membership;
}

}  // namespace tutti
