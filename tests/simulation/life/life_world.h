#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/life/fibers.h"
#include "tests/simulation/life/life_case.h"
#include "tests/simulation/life/life_record.h"
#include "tests/simulation/life/sim_store.h"
#include "tutti/base/error.h"
#include "tutti/core/meeting/attempt.h"

namespace tutti::simulated {
class CommunicatorState;
}

namespace tutti::simulation {

/// One communicator as the world knows it: its members and the cause of its end.
class Link {
 public:
  struct Cause {
    int rank = -1;
    ErrorCode code{};
    Fibers::Time when;
  };
  std::string path;
  std::vector<LaunchedRank> members;
  std::vector<bool> left;
  std::optional<Cause> cause;        // the first cause
  std::vector<Fibers::Time> hears;   // when each rank learns the cause
  std::vector<int> operations;       // each rank's count of operations
  std::map<int, std::set<int>> met;  // operation -> the ranks that have begun it
  std::vector<Fibers::Task*> waiting;
  int next_step = -1;  // the program's step, set by the first rank that arrives
};

/// A job under virtual time. Its ranks are fibers that run the shipped core/meeting and
/// core/membership over a simulated store. They meet and connect through keys of the store. From
/// then on a model replaces the engine: an operation ends once all ranks have begun it.
class World {
 public:
  explicit World(const LifeCase& from, bool with_trace = false);
  LifeRecord run();
  const std::string& trace() const { return trace_; }

  // The stand-in for the engine calls these.
  static World& current();
  std::shared_ptr<Store> store() { return store_.client(); }
  /// Does what make_engine() of the shipped bootstrap.cc does, within one attempt.
  void connect(simulated::CommunicatorState& state);
  std::optional<Error> heard(const Link& link, int rank) const;
  void leave(Link& link, int rank);
  bool split_meets() const { return case_.split_meets; }

 private:
  struct Process {
    size_t number = 0;  // index in the record
    LaunchedRank who;
    Fibers::Task* task = nullptr;
    int calls = 0;
    bool fails_to_connect = false;
    bool shrink_failed = false;  // it must start again
  };
  using State = std::shared_ptr<simulated::CommunicatorState>;
  using Call = LifeRecord::Call;

  Process& me();
  LifeRecord::Process& record_of(const Process& process) {
    return record_.processes[process.number];
  }
  double seconds() { return std::chrono::duration<double>(fibers_.now() - begin_).count(); }
  void start(LaunchedRank who, Fibers::Time when);
  void live(Process& process);
  bool go_through(Process& process, State& state, int& next);
  bool recover(Process& process, State& state);
  void step(State& state, const LifeStep& step);
  void meet(const State& state);
  State make(Call::Kind kind, const State& parent, double limit,
             const std::function<State()>& call);
  void end_process(Process& process, int signal);
  void write_end(Process& process, int signal, bool was_killed);
  void await_address(Store& store, const Membership& membership, int peer);
  void break_link(Link& link, int rank, ErrorCode code);
  void begin_fault(size_t number);
  void come(size_t number);
  Process* living(int rank);
  void note(const std::string& line);

  const LifeCase case_;
  Fibers fibers_;
  SimStore store_;
  Random random_;
  const Fibers::Time begin_;
  std::deque<Process> processes_;
  std::map<std::string, Link> links_;
  std::set<std::pair<std::string, int>> abandoned_;  // failed attempts, with the rank
  std::vector<bool> came_;                           // for each fault: it has happened
  LifeRecord record_;
  int ends_ = 0;
  const bool with_trace_;
  std::string trace_;
};

}  // namespace tutti::simulation
