#include "tutti/core/watch/stall.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/text.h"
#include "tutti/core/watch/liveness.h"

namespace tutti {

double StallClock::next(double reported) const {
  if (reported < first_) return first_;
  if (reported < 10 && first_ < 10) return 10;
  return reported + 60;
}

namespace {

bool is_alive(const RankKnowledge& known) {
  return !known.is_stopped && known.heard_seconds <= Liveness::kEvidence;
}

std::string cause(int rank, const Negotiator::Waiting& waiting,
                  const std::vector<Negotiator::Waiting>& all, const RankKnowledge& known) {
  if (!is_alive(known) || !known.status) return describe_late_rank(rank, known);
  if (known.status->blocking == waiting.name)
    return fmt::format(
        "Rank {} waits in a blocking call of that name: a blocking call and an asynchronous one "
        "never meet. Call it the same way on all ranks.",
        rank);
  // Names that this rank has requested and other ranks have not. The name for which the other ranks
  // wait may be misspelled as one of these.
  std::vector<std::string> extra;
  for (const auto& other : all)
    if (other.name != waiting.name &&
        std::find(other.present.begin(), other.present.end(), rank) != other.present.end())
      extra.push_back(other.name);
  if (const auto nearest = nearest_word(waiting.name, extra))
    return fmt::format("Rank {} is alive and submitted \"{}\", which others lack: a misspelt name?",
                       rank, *nearest);
  if (extra.empty() || known.status->last_submitted.empty()) return describe_late_rank(rank, known);
  return fmt::format(
      "Rank {} is alive and last submitted \"{}\", which waits for others: another order?", rank,
      known.status->last_submitted);
}

}  // namespace

std::string describe_late_rank(int rank, const RankKnowledge& known) {
  if (known.is_stopped) return fmt::format("Rank {} is stopped, by SIGSTOP or a debugger.", rank);
  if (std::isinf(known.heard_seconds))
    return fmt::format("No message has come from rank {} yet.", rank);
  if (!is_alive(known))
    return fmt::format("Rank {} has not answered for {:.1f} s: stopped, or cut off?", rank,
                       known.heard_seconds);
  if (!known.status)
    return fmt::format("Rank {} is alive and has not yet reported what it does.", rank);
  const auto& status = *known.status;
  if (!status.blocking.empty())
    return fmt::format("Rank {} is alive and waits in the blocking call \"{}\".", rank,
                       status.blocking);
  if (status.joined)
    return fmt::format("Rank {} is alive and has joined: it waits until all ranks have.", rank);
  const auto calls = status.blocking_calls == 0
                         ? std::string()
                         : fmt::format(", after {} blocking call{}", status.blocking_calls,
                                       status.blocking_calls == 1 ? "" : "s");
  if (status.last_submitted.empty())
    return fmt::format("Rank {} is alive and has submitted nothing yet{}.", rank, calls);
  return fmt::format("Rank {} is alive and last submitted \"{}\"{}; it is late.", rank,
                     status.last_submitted, calls);
}

std::string stall_line(const Negotiator::Waiting& waiting,
                       const std::vector<Negotiator::Waiting>& all,
                       const std::vector<RankKnowledge>& ranks, Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - waiting.since).count();
  std::string line =
      fmt::format("\"{}\" has waited {:.1f} s for {} ({} {} there).", waiting.name, seconds,
                  format_rank_set(waiting.missing), format_rank_set(waiting.present),
                  waiting.present.size() == 1 ? "is" : "are");
  constexpr size_t kMost = 3;
  for (size_t i = 0; i < std::min(kMost, waiting.missing.size()); ++i) {
    const int rank = waiting.missing[i];
    line += ' ' + cause(rank, waiting, all, ranks[static_cast<size_t>(rank)]);
  }
  return line;
}

}  // namespace tutti
