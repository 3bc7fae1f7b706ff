#include "tests/simulation/life/life_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace tutti::simulation {

namespace {

using Call = LifeRecord::Call;
using Process = LifeRecord::Process;
using Kind = Call::Kind;

// Seconds of core/meeting and core/membership: between two checks of a waiting rank, and for the
// launcher to report a death.
constexpr double kLook = 0.1, kPatience = 0.3;
// Seconds for which a bounded call of the store waits after its deadline.
constexpr double kGrace = 0.5;
// The most keys that a job without faults leaves: those of the last attempt and its deaths, of
// shrinks, and the counters.
constexpr size_t kMostKeys = 40;

class Judge {
 public:
  Judge(const LifeCase& from, const LifeRecord& record, LifeLooks& looks)
      : case_(from), record_(record), looks_(looks) {}

  std::vector<LifeFinding> judge() {
    for (const auto& rule : record_.broken_rules) find(0, rule);
    for (const auto& call : record_.calls)
      if (call.kind == Kind::attempt) attempts_[call.path].push_back(&call);
    for (const auto& call : record_.calls) {
      if (call.kind == Kind::attempt) continue;
      check_time(call);
      if (!call.well && call.ended != kNever) check_cause(call);
      if (call.well && call.kind == Kind::shrink) check_survivors(call);
    }
    for (const auto& [path, calls] : attempts_) {
      check_attempt(path, calls);
      check_first_causes(calls);
    }
    check_ends();
    return std::move(findings_);
  }

 private:
  const Process& process_of(const Call& call) const {
    return record_.processes[static_cast<size_t>(call.process)];
  }
  std::string name_of(const Call& call) const {
    constexpr const char* kNames[] = {"create", "split", "shrink", "attempt"};
    const auto& who = process_of(call).who;
    return fmt::format("{} of rank {}.{} at {:.6f} s", kNames[static_cast<int>(call.kind)],
                       who.rank, who.incarnation, call.began);
  }
  void find(int promise, std::string text) { findings_.push_back({promise, std::move(text)}); }

  bool had_store_trouble(double by) const {
    return (record_.store_ended != kNever && record_.store_ended <= by) || record_.slow_by > 0;
  }
  bool was_anybody_stopped() const {
    return std::any_of(record_.processes.begin(), record_.processes.end(),
                       [](const Process& process) { return !process.stops.empty(); });
  }
  // Returns the seconds that a rank may need for calls of the store and because it was stopped.
  double room(const Call& call, int64_t calls) const {
    double seconds = 1e-3 +
                     static_cast<double>(2 * calls) * (1.5 * case_.latency + 0.1 * case_.longest) +
                     20 * case_.longest + (case_.polls ? 0.05 : 0);
    if (record_.slow_by > 0) seconds += 7 + 6 * record_.slow_by;
    for (const auto& [begin, end] : process_of(call).stops) seconds += end - begin;
    return seconds;
  }

  // Checks L1.
  void check_time(const Call& call) {
    ++looks_[1];
    if (call.ended == kNever) return;  // it was killed, or the world reports that it never ended
    const double most = (call.kind == Kind::split ? 2 : 1) * call.limit + kPatience + kGrace +
                        2 * kLook + room(call, std::min<int64_t>(call.store_calls, 2000));
    if (call.ended - call.began > most)
      find(1, fmt::format("{} took {:.3f} s, where {:.3f} s are the most", name_of(call),
                          call.ended - call.began, most));
  }

  // Checks L2 and L3.
  void check_attempt(const std::string& path, const std::vector<const Call*>& calls) {
    const Call* connected = nullptr;
    const Call* with_members = nullptr;
    const Call* failed = nullptr;  // the first call that reported its failure to the others
    for (const auto* call : calls) {
      if (call->ended == kNever) continue;
      if (call->well && with_members == nullptr) with_members = call;
      // The others may have gone on without a rank that was stopped, and erased their keys. Its
      // peers are lost then, whether or not it connects.
      if (!process_of(*call).stops.empty()) continue;
      if (call->well && connected == nullptr) connected = call;
      if (call->well || call->code == ErrorCode::unavailable) continue;
      if (failed == nullptr || call->ended < failed->ended) failed = call;
    }
    ++looks_[2];
    // A rank whose call was cut off at the deadline may not have reported its failure.
    if (connected != nullptr && failed != nullptr && !had_store_trouble(failed->ended))
      find(2, fmt::format("{} ended well for rank {} and failed for rank {}: {}", path,
                          process_of(*connected).who.rank, process_of(*failed).who.rank,
                          failed->text));
    for (const auto* call : calls)
      if (call->ended != kNever && call->well && call->members != with_members->members)
        find(2, fmt::format("two ranks name other members of {}", path));
    if (failed == nullptr) return;
    for (const auto* call : calls) {
      const double heard = std::max(failed->ended, call->began);
      const double last = heard + 2 * kLook + kPatience + room(*call, 60);
      if (process_of(*call).died <= last || record_.store_ended <= last) continue;
      if (!process_of(*call).stops.empty()) continue;  // the store may have forgotten the attempt
      ++looks_[3];
      if (call->ended > last)
        find(3, fmt::format("{} failed for rank {} at {:.6f} s, and rank {} went on until {:.6f} s",
                            path, process_of(*failed).who.rank, failed->ended,
                            process_of(*call).who.rank, call->ended));
    }
  }

  // Checks L4.
  void check_cause(const Call& call) {
    ++looks_[4];
    if (const auto why = why_not(call))
      find(4, fmt::format("{} ended with \"{}\", which names rank {}: {}", name_of(call), call.text,
                          call.rank, *why));
  }

  // A stopped rank may read the report of a rank that gave it up. The text of the report then names
  // the stopped rank, and the error names the reporter (see ToldError).
  bool is_accused(const Call& call) const {
    const auto& own = process_of(call);
    const bool was_stopped = !own.stops.empty() && own.stops.front().first <= call.ended;
    return was_stopped &&
           call.text.find(fmt::format("rank {} is lost", own.who.rank)) != std::string::npos;
  }

  std::optional<std::string> why_not(const Call& call) const {
    const auto& own = process_of(call);
    bool has_ended = false, was_stopped = false, failed_to_connect = false, is_any = false;
    for (const auto& process : record_.processes) {
      const bool ended = process.ended <= call.ended;
      const bool stopped = !process.stops.empty() && process.stops.front().first <= call.ended;
      const bool failed = process.failed_to_connect <= call.ended;
      is_any |= ended || stopped || failed;
      if (process.who.rank != call.rank) continue;
      has_ended |= ended;
      was_stopped |= stopped;
      failed_to_connect |= failed;
    }
    if (call.code == ErrorCode::unavailable)
      return had_store_trouble(call.ended) ? std::nullopt
                                           : std::optional<std::string>("the store is there");
    if (!is_any && !had_store_trouble(call.ended)) return "nothing has happened";
    // If a communicator ends because of a rank outside a part that connects, the part's error names
    // no rank. The part's ranks learn it from each other with the text of the parent's error,
    // before their own engines know it. Even a timeout may come from the parent; a timeout of the
    // part itself has another text and a rank.
    const bool is_of_parent = call.code != ErrorCode::timeout || call.text.ends_with(" is lost");
    if (call.rank < 0 && call.kind == Kind::split && is_of_parent && is_any) return {};
    if (call.rank < 0) return "it names no rank";
    // The others reported the death of this process's predecessor just when this process came. It
    // calls again with them.
    if (own.who.incarnation > 0 && call.code == ErrorCode::peer_lost &&
        call.text.starts_with(fmt::format("rank {} (", own.who.rank)))
      return {};
    if (call.rank == own.who.rank) {
      if (failed_to_connect && call.code == ErrorCode::io) return {};
      if (call.code == ErrorCode::peer_silent)
        return was_anybody_stopped() || failed_to_connect || had_store_trouble(call.ended)
                   ? std::nullopt
                   : std::optional<std::string>("it was given up without a cause");
      return "a rank is no cause of its own error";
    }
    switch (call.code) {
      case ErrorCode::peer_lost:
        return has_ended ? std::nullopt : std::optional<std::string>("that rank lives");
      case ErrorCode::peer_silent:
        return was_stopped || is_accused(call)
                   ? std::nullopt
                   : std::optional<std::string>("that rank never stopped");
      case ErrorCode::io:
        return failed_to_connect ? std::nullopt
                                 : std::optional<std::string>("that rank lacked nothing");
      case ErrorCode::timeout:
      case ErrorCode::peer_left:
        return {};  // that rank may have waited for another one
      default:
        return "an error of a kind that nothing here can lead to";
    }
  }

  // Checks L5: of several members of one attempt that died, the error names the first one in the
  // launcher's log.
  void check_first_causes(const std::vector<const Call*>& attempt) {
    std::set<std::pair<int, int>> here;
    for (const auto* call : attempt)
      here.emplace(process_of(*call).who.rank, process_of(*call).who.incarnation);
    for (const auto* call : attempt)
      if (!call->well && call->ended != kNever) check_first_cause(*call, here);
  }

  // `here` holds the ranks and incarnations of the attempt.
  void check_first_cause(const Call& call, const std::set<std::pair<int, int>>& here) {
    if (call.code != ErrorCode::peer_lost ||
        call.text.find("while the ranks were connecting") == call.text.npos ||
        call.text.find("started again") != call.text.npos)
      return;
    const auto came_later = [&](LaunchedRank who) {
      return std::any_of(here.begin(), here.end(), [&](const auto& other) {
        return other.first == who.rank && other.second > who.incarnation;
      });
    };
    int named = -1;
    for (const auto& process : record_.processes)
      if (process.who.rank == call.rank && process.ended <= call.ended)
        named = std::max(named, process.number_in_log);
    if (named < 0) return;
    ++looks_[5];
    for (const auto& process : record_.processes) {
      const auto& who = process.who;
      if (who.rank == call.rank || process.number_in_log < 0 || process.number_in_log >= named)
        continue;
      if (!here.contains({who.rank, who.incarnation}) || came_later(who)) continue;
      // A death does not count if the named rank had died before it.
      bool named_before = false;
      for (const auto& other : record_.processes)
        named_before |= other.who.rank == call.rank && other.number_in_log >= 0 &&
                        other.number_in_log < process.number_in_log;
      if (named_before) continue;
      find(5, fmt::format("{} names rank {}, but rank {} died before it", name_of(call), call.rank,
                          who.rank));
    }
  }

  // Checks L6.
  void check_survivors(const Call& call) {
    ++looks_[6];
    const auto is_member = [&](const Call& of, int rank) {
      return std::any_of(of.members.begin(), of.members.end(),
                         [&](const LaunchedRank& who) { return who.rank == rank; });
    };
    for (const int rank : call.given_up)
      if (is_member(call, rank))
        find(6, fmt::format("{} ended with rank {}, which that rank had given up", name_of(call),
                            rank));
    if (was_anybody_stopped() || had_store_trouble(kNever)) return;
    double first = call.began;
    std::set<int> accused;
    const auto overlaps = [&](const Call& other) {
      return other.kind == Kind::shrink && other.candidates == call.candidates &&
             other.began < call.ended && other.ended > call.began;
    };
    for (const auto& other : record_.calls) {
      if (!overlaps(other)) continue;
      first = std::min(first, other.began);
      accused.insert(other.given_up.begin(), other.given_up.end());
    }
    const double settle = std::max(1.0, case_.peer_timeout);
    for (const auto& other : record_.calls) {
      const auto& process = process_of(other);
      if (!overlaps(other) || is_member(call, process.who.rank) || process.ended < call.ended ||
          process.failed_to_connect != kNever || accused.contains(process.who.rank) ||
          other.began > first + settle - room(other, 20))
        continue;
      find(6, fmt::format("{} left out rank {}, which lives and came in time", name_of(call),
                          process.who.rank));
    }
  }

  bool ended_in_create(const Process& process) const {
    const Call* last = nullptr;
    for (const auto& call : record_.calls)
      if (call.kind != Kind::attempt && &process_of(call) == &process) last = &call;
    return last != nullptr && last->kind == Kind::create && !last->well;
  }

  // Checks L7 and L8.
  void check_ends() {
    if (case_.faults.empty()) {
      ++looks_[8];
      if (record_.keys > kMostKeys) {
        std::string keys;
        for (const auto& key : record_.keys_left) keys += " " + key;
        find(8, fmt::format("{} keys are left:{}", record_.keys, keys));
      }
    }
    if (had_store_trouble(kNever) || was_anybody_stopped()) return;
    const bool all_came = std::all_of(
        record_.processes.begin(), record_.processes.end(),
        [](const Process& process) { return process.was_in || process.who.incarnation > 0; });
    for (const auto& process : record_.processes) {
      ++looks_[7];
      if (process.finished || process.died != kNever) continue;
      const bool others_ended = std::any_of(
          record_.processes.begin(), record_.processes.end(), [&](const Process& other) {
            return &other != &process && other.died == kNever && other.ended <= process.ended;
          });
      // If ranks are not started again, a rank may give up in two cases: a process died before
      // there was a communicator of all ranks, or this one could not connect.
      if (case_.starts_again
              ? others_ended
              : !all_came || process.failed_to_connect != kNever || ended_in_create(process))
        continue;
      find(7, fmt::format("rank {}.{} gave up: {}", process.who.rank, process.who.incarnation,
                          process.why));
    }
  }

  const LifeCase& case_;
  const LifeRecord& record_;
  LifeLooks& looks_;
  std::map<std::string, std::vector<const Call*>> attempts_;
  std::vector<LifeFinding> findings_;
};

}  // namespace

std::vector<LifeFinding> check_life(const LifeCase& from, const LifeRecord& record,
                                    LifeLooks* looks) {
  LifeLooks unused{};
  return Judge(from, record, looks == nullptr ? unused : *looks).judge();
}

}  // namespace tutti::simulation
