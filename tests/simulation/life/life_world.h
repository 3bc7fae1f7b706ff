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

/// One communicator, as the world knows it: who is in it, and what ended it.
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
  std::optional<Cause> cause;        // the first one
  std::vector<Fibers::Time> hears;   // when each rank knows it
  std::vector<int> operations;       // of each rank so far
  std::map<int, std::set<int>> met;  // operation -> the ranks that have begun it
  std::vector<Fibers::Task*> waiting;
  int next_step = -1;  // of the program, by the word of the first rank
};

/// A job under virtual time: its ranks are fibers that run core/meeting and core/membership as they
/// are, over a simulated store. Once they have met and connected, which they do by keys of the
/// store, a model takes the engine's place: an operation ends once all ranks have begun it.
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
    size_t number = 0;  // in the record
    LaunchedRank who;
    Fibers::Task* task = nullptr;
    int calls = 0;
    bool fails_to_connect = false;
    bool shrink_failed = false;  // then it must start anew
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
  std::set<std::pair<std::string, int>> abandoned_;  // attempts, by ranks
  std::vector<bool> came_;                           // of the faults
  LifeRecord record_;
  int ends_ = 0;
  const bool with_trace_;
  std::string trace_;
};

}  // namespace tutti::simulation
