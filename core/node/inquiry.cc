#include "tutti/core/node/inquiry.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

void Inquiry::open(int peer, const std::string& seen, Clock::time_point now) {
  peer_ = peer;
  how_ = fmt::format("was lost ({})", seen);
  lost_ = -1;
  opened_ = now;
  until_ = now + kLongest;
  next_look_ = now + kBetweenLooks;
}

// Looks for the cause in the launcher's record of deaths. The cause is the first recorded member
// that failed, or the peer itself, however it ended. Any other rank that is already gone is
// skipped.
void Inquiry::on_deaths(const KnownDeaths& known, const Context& context, const Peers& peers) {
  if (known.is_all) until_ = std::min(until_, opened_ + kLongestWithoutRecord);
  for (const auto& death : known.deaths) {
    const auto place = std::ranges::find_if(context.places, [&](const Place& member) {
      return LaunchedRank{member.world_rank, member.incarnation} == death.who;
    });
    const int rank = static_cast<int>(place - context.places.begin());
    if (rank >= context.size || rank == context.rank) continue;
    if (rank != peer_ && (peers.is_gone(rank) || !death.failed())) continue;
    how_ = fmt::format("{} without closing its Communicator", describe_death(death));
    lost_ = rank;
    return;
  }
}

std::optional<Inquiry::Verdict> Inquiry::look(Clock::time_point now, ProcessState peer_process) {
  if (lost_ < 0 && peer_process == ProcessState::ended)
    how_ = "ended without closing its Communicator (its process exited or was killed)";
  if (lost_ < 0 && now < until_) {
    if (now >= next_look_) next_look_ = now + kBetweenLooks;
    return {};
  }
  Verdict verdict{lost_ < 0 ? peer_ : lost_, std::move(how_)};
  peer_ = -1;
  next_look_ = Clock::time_point::max();
  return verdict;
}

}  // namespace tutti
