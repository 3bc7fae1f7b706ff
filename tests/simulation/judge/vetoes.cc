// I7: all ranks take part in a bucket that one of them vetoes.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tests/simulation/judge/departures.h"

namespace tutti::simulation {

namespace {

// At most this many buckets of a plan run at once (Scheduler::kMostRunning).
constexpr uint64_t kMostRunning = 8;

std::optional<Micros> started_at(const RankRecord& state, uint64_t plan, uint64_t sequence) {
  for (const auto& bucket : state.buckets)
    if (bucket.plan == plan && bucket.sequence == sequence) return bucket.at;
  return {};
}

// Returns when this rank could take part. It must have started the bucket before, and all ranks the
// bucket that must be over by then. Returns nothing if one of these did not happen.
std::optional<Micros> ready_at(const View& view, const RankRecord& state,
                               const BucketRecord& vetoed) {
  if (vetoed.sequence == 0) return 0;
  auto ready = started_at(state, vetoed.plan, vetoed.sequence - 1);
  if (vetoed.sequence < kMostRunning) return ready;
  for (const auto& one : view.record.ranks) {
    const auto at = started_at(one, vetoed.plan, vetoed.sequence - kMostRunning);
    if (!ready || !at) return {};
    ready = std::max(*ready, *at);
  }
  return ready;
}

// Returns whether this is the first vetoed bucket of its plan. It ends the plan, so later buckets
// do not count.
bool is_first(const View& view, const BucketRecord& vetoed) {
  return std::ranges::none_of(view.record.ranks, [&](const RankRecord& state) {
    return std::ranges::any_of(state.buckets, [&](const BucketRecord& bucket) {
      return bucket.plan == vetoed.plan && bucket.vetoes && bucket.sequence < vetoed.sequence;
    });
  });
}

bool is_ending(const RankRecord& state, Micros by) {
  return (state.closing != kNever && state.closing <= by) ||
         (state.broken != kNever && state.broken <= by);
}

}  // namespace

// Once a rank leaves or breaks off, a plan may end without its vetoes.
void vetoes_are_heard(const View& view, Findings& findings) {
  if (!view.from.faults.empty()) return;
  const Micros while_it_hears = 20 * longest_way(view.from);
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank)
    for (const auto& vetoed : view.record.ranks[rank].buckets) {
      if (!vetoed.vetoes || !is_first(view, vetoed)) continue;
      for (size_t other = 0; other < view.record.ranks.size(); ++other) {
        const RankRecord& state = view.record.ranks[other];
        const auto ready = ready_at(view, state, vetoed);
        if (!ready) continue;
        const Micros due = std::max(vetoed.at, *ready) + while_it_hears;
        if (std::ranges::any_of(view.record.ranks,
                                [&](const RankRecord& one) { return is_ending(one, due); }))
          continue;
        view.looks(7);
        const auto at = started_at(state, vetoed.plan, vetoed.sequence);
        if (!at || *at > due)
          findings.push_back(
              {7,
               fmt::format("rank {} vetoed bucket {} of plan {} at {}, and rank {} {}", rank,
                           vetoed.sequence, vetoed.plan, vetoed.at, other,
                           !at ? "never took part in it" : fmt::format("took part at {}", *at))});
      }
    }
}

}  // namespace tutti::simulation
