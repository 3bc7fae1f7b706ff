#include "tutti/core/watch/stall.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/text.h"

namespace tutti {

double StallClock::next(double reported) const {
  if (reported < first_) return first_;
  if (reported < 10 && first_ < 10) return 10;
  return reported + 60;
}

namespace {

std::string cause(int rank, const Negotiator::Waiting& waiting,
                  const std::vector<Negotiator::Waiting>& all, const RankKnowledge& known) {
  constexpr double kQuiet = 2.5;
  if (known.quiet_seconds > kQuiet)
    return fmt::format("Rank {} has not answered for {:.1f} s: stopped, or cut off?", rank,
                       known.quiet_seconds);
  // Names that this rank has and others lack: one of them may be meant.
  std::vector<std::string> extra;
  for (const auto& other : all)
    if (other.name != waiting.name &&
        std::find(other.present.begin(), other.present.end(), rank) != other.present.end())
      extra.push_back(other.name);
  if (const auto nearest = nearest_word(waiting.name, extra))
    return fmt::format("Rank {} is alive and submitted \"{}\", which others lack: a misspelt name?",
                       rank, *nearest);
  if (known.status.last_submitted.empty())
    return fmt::format("Rank {} is alive and has submitted nothing yet.", rank);
  return fmt::format("Rank {} is alive and last submitted \"{}\"{}.", rank,
                     known.status.last_submitted,
                     extra.empty() ? "; it is late" : ", which waits for others: another order?");
}

}  // namespace

std::string stall_line(const Negotiator::Waiting& waiting,
                       const std::vector<Negotiator::Waiting>& all,
                       const std::vector<RankKnowledge>& ranks, Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - waiting.since).count();
  std::string line =
      fmt::format("\"{}\" waits for {} since {:.1f} s ({} {} there).", waiting.name,
                  format_rank_set(waiting.missing), seconds, format_rank_set(waiting.present),
                  waiting.present.size() == 1 ? "is" : "are");
  constexpr size_t kMost = 3;
  for (size_t i = 0; i < std::min(kMost, waiting.missing.size()); ++i) {
    const int rank = waiting.missing[i];
    line += ' ' + cause(rank, waiting, all, ranks[static_cast<size_t>(rank)]);
  }
  return line;
}

}  // namespace tutti
