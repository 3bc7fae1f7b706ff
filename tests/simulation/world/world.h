#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simulation/case.h"
#include "tests/simulation/events.h"
#include "tests/simulation/record.h"
#include "tests/simulation/run.h"
#include "tests/simulation/world/net.h"
#include "tests/simulation/world/rank.h"
#include "tests/simulation/world/sim_net.h"

namespace tutti::simulation {

/// The ranks of one case, the network between them, and its faults.
class SimWorld {
 public:
  using Time = Events::Time;
  SimWorld(const Case& from, bool with_trace);
  ~SimWorld();
  Outcome run();

  const Case& from() const { return case_; }
  Events& events() { return events_; }
  Net& net() { return *net_; }
  Record& record() { return outcome_.record; }
  RankRecord& record_of(int rank) { return record().ranks.at(static_cast<size_t>(rank)); }
  SimRank& rank(int number) { return *ranks_.at(static_cast<size_t>(number)); }
  Micros micros() const { return micros_of(events_.now()); }
  Micros micros_of(Time when) const {
    return std::chrono::duration_cast<std::chrono::microseconds>(when - began_).count();
  }
  Time time_of(Micros when) const { return began_ + std::chrono::microseconds(when); }

  /// Stops the world, because a rank steps again and again without progress.
  void stop() { is_stopped_ = true; }

  /// Returns an active fault of this rank, or the fault of its `call`-th call. The caller then
  /// applies it.
  const Fault* fault(Fault::Kind kind, int rank, std::optional<int64_t> call = {});
  /// Applies the faults that wait for this step of this rank.
  void on_step(int rank, uint64_t step);
  /// Begins the faults that wait for this phase.
  void on_phase(int phase);
  /// Returns the deaths that the launcher has recorded by now.
  std::vector<Death> deaths() const;

  /// Everything passed to note() goes into the trace and its hash.
  bool is_traced() const { return with_trace_; }
  void note(int rank, std::string_view what, uint64_t number = 0);
  void note(int rank, std::string_view what, std::string_view text);

 private:
  static SimTraits traits_of(const World& world);
  static std::unique_ptr<Net> make_net(Events& events, const World& world);
  /// A fault of the case, and its state.
  struct Trouble {
    Fault fault;
    bool has_begun = false;
    bool is_over = false;  // the call that it waited for was made
  };
  void begin(Trouble& trouble);
  void apply(const Fault& fault);
  void happens(Fault::Kind kind) { record().faults.set(static_cast<size_t>(kind)); }
  Time end_of(const Fault& fault) const;
  void record_death(int rank);
  void mix(uint64_t value);

  const Case& case_;
  const bool with_trace_;
  Events events_;
  const Time began_;
  bool is_stopped_ = false;
  Random random_;
  Outcome outcome_;
  const std::unique_ptr<Net> net_;
  std::vector<Trouble> troubles_;
  unsigned phases_seen_ = 0;  // a bit for each phase
  std::vector<std::unique_ptr<SimRank>> ranks_;
  std::vector<std::pair<Time, Death>> deaths_;
};

}  // namespace tutti::simulation
