// I7: all ranks take part in a bucket that one of them vetoes.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tests/simulation/judge/departures.h"

namespace tutti::simulation {

namespace {

// When this rank could take part: it had started the bucket before, if there is one. None: it had
// not, and starts that first.
std::optional<Micros> ready_at(const RankRecord& state, const BucketRecord& vetoed) {
  if (vetoed.sequence == 0) return 0;
  for (const auto& bucket : state.buckets)
    if (bucket.plan == vetoed.plan && bucket.sequence + 1 == vetoed.sequence) return bucket.at;
  return {};
}

Micros took_part_at(const RankRecord& state, const BucketRecord& vetoed) {
  for (const auto& bucket : state.buckets)
    if (bucket.plan == vetoed.plan && bucket.sequence == vetoed.sequence) return bucket.at;
  return kNever;
}

// The first bucket that a rank vetoes ends the plan; what comes behind it never happened.
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

// A plan ends without its vetoes once a rank leaves or breaks off.
void vetoes_are_heard(const View& view, Findings& findings) {
  if (!view.from.faults.empty()) return;
  const Micros while_it_hears = 20 * longest_way(view.from);
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank)
    for (const auto& vetoed : view.record.ranks[rank].buckets) {
      if (!vetoed.vetoes || !is_first(view, vetoed)) continue;
      for (size_t other = 0; other < view.record.ranks.size(); ++other) {
        const RankRecord& state = view.record.ranks[other];
        const auto ready = ready_at(state, vetoed);
        if (!ready) continue;
        const Micros due = std::max(vetoed.at, *ready) + while_it_hears;
        if (std::ranges::any_of(view.record.ranks,
                                [&](const RankRecord& one) { return is_ending(one, due); }))
          continue;
        view.looks(7);
        const Micros at = took_part_at(state, vetoed);
        if (at == kNever || at > due)
          findings.push_back(
              {7, fmt::format("rank {} vetoed bucket {} of plan {} at {}, and rank {} {}", rank,
                              vetoed.sequence, vetoed.plan, vetoed.at, other,
                              at == kNever ? "never took part in it"
                                           : fmt::format("took part at {}", at))});
      }
    }
}

}  // namespace tutti::simulation
