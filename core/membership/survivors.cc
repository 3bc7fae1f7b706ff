#include "tutti/core/membership/survivors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <numeric>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

// Seconds to wait for the vote of a rank that other ranks have given up. The rank may still live.
constexpr double kBriefSettle = 0.25;
// A rank that caused this many failed attempts to connect is given up, even if it voted each time.
constexpr int kMostComplaints = 2;
constexpr double kFirstPause = 0.002, kLongestPause = 0.05;

std::string vote_key(int first_rank) { return fmt::format("vote/{}", first_rank); }

std::string to_text(const std::set<int>& ranks) {
  return format_rank_set(std::vector<int>(ranks.begin(), ranks.end()));
}

}  // namespace

std::vector<int> choose_members(Votes votes, const std::set<int>& dead) {
  for (const int rank : dead) votes.erase(rank);
  while (true) {
    std::map<int, int> against;
    for (const auto& [voter, given_up] : votes)
      for (const int rank : given_up)
        if (rank != voter && votes.contains(rank)) ++against[rank];
    if (against.empty()) break;
    const auto most =
        std::max_element(against.begin(), against.end(), [](const auto& a, const auto& b) {
          return std::pair(a.second, a.first) < std::pair(b.second, b.first);
        });
    votes.erase(most->first);
  }
  std::vector<int> members;
  for (const auto& vote : votes) members.push_back(vote.first);
  return members;
}

Survivors::Terms Survivors::completed(Terms terms) {
  if (terms.first_ranks.empty()) {
    terms.first_ranks.resize(terms.launched.size());
    std::iota(terms.first_ranks.begin(), terms.first_ranks.end(), 0);
  }
  return terms;
}

Survivors::Survivors(std::shared_ptr<Store> root, std::string path, int epoch, Terms terms)
    : root_(std::move(root)),
      path_(std::move(path)),
      terms_(completed(std::move(terms))),
      deaths_(root_),
      first_epoch_(epoch),
      epoch_(epoch),
      candidates_(terms_.launched.size()),
      given_up_(terms_.given_up) {
  std::iota(candidates_.begin(), candidates_.end(), 0);
}

std::string Survivors::epoch_path(int epoch) const {
  return fmt::format("{}/epoch{}", path_, epoch);
}

// Returns the key that lists an epoch's members. It is outside the epoch's prefix, so it stays when
// the epoch's keys are erased. So an excluded rank that wakes up later can still read that it is
// not a member.
std::string Survivors::members_key(int epoch) const {
  return fmt::format("{}/members/{}", path_, epoch);
}

int Survivors::first_rank(int rank) const { return terms_.first_ranks[static_cast<size_t>(rank)]; }

std::vector<int> Survivors::first_ranks() const {
  std::vector<int> ranks;
  for (const int rank : candidates_) ranks.push_back(first_rank(rank));
  return ranks;
}

template <typename Ranks>
std::string Survivors::encode(const Ranks& ranks) const {
  std::vector<int> firsts;
  for (const int rank : ranks) firsts.push_back(first_rank(rank));
  return fmt::format("{}", fmt::join(firsts, " "));
}

// Returns the ranks listed in `text`. Skips numbers that are not one of the communicator's ranks.
std::vector<int> Survivors::decode(const std::string& text) const {
  const auto& firsts = terms_.first_ranks;
  std::vector<int> ranks;
  for (const auto& word : split_text(text, ' ')) {
    const auto first = parse_integer(word, 0, INT_MAX).value_or(-1);
    const auto found = std::lower_bound(firsts.begin(), firsts.end(), first);
    if (found != firsts.end() && *found == first)
      ranks.push_back(static_cast<int>(found - firsts.begin()));
  }
  return ranks;
}

std::set<int> Survivors::dead_ranks() {
  std::set<int> dead;
  for (const auto& death : deaths_.look()) {
    const auto found = std::find(terms_.launched.begin(), terms_.launched.end(), death.who);
    if (found != terms_.launched.end())
      dead.insert(static_cast<int>(found - terms_.launched.begin()));
  }
  dead.erase(terms_.own);
  return dead;
}

// Returns the candidates that have not voted and are not known to be dead.
std::set<int> Survivors::awaited(const Votes& votes, const std::set<int>& dead) const {
  std::set<int> ranks;
  for (const int rank : candidates_)
    if (!votes.contains(rank) && !dead.contains(rank)) ranks.insert(rank);
  return ranks;
}

std::vector<int> Survivors::agree(Deadline deadline) {
  ++epoch_;
  const auto store = make_prefix_store(root_, epoch_path() + "/");
  const auto members = members_key(epoch_);
  Votes votes{{terms_.own, given_up_}};
  std::optional<std::string> counted;
  std::string fixed;
  const auto settled = Deadline::after(terms_.settle), briefly = Deadline::after(kBriefSettle);
  store->set(vote_key(first_rank(terms_.own)), encode(given_up_));
  store->add("votes", 1);
  for (double pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const auto dead = dead_ranks();
    const auto number = store->try_get("votes");
    if (number != counted) {
      counted = number;
      for (const int rank : awaited(votes, dead))
        if (const auto vote = store->try_get(vote_key(first_rank(rank))))
          for (const int other : (votes[rank], decode(*vote))) votes[rank].insert(other);
    }
    auto late = awaited(votes, dead);
    if (briefly.passed())
      for (const auto& vote : votes)
        for (const int rank : vote.second) late.erase(rank);
    if (late.empty() || settled.passed()) {
      fixed = root_->set_once(members, encode(choose_members(votes, dead)));
      break;
    }
    if (deadline.passed())
      throw Error(ErrorCode::timeout,
                  fmt::format("shrink: the deadline has passed while {} did not say that {}; every "
                              "survivor must call it",
                              to_text(late), late.size() == 1 ? "it lives" : "they live"))
          .with_rank(*late.begin());
    try {
      const auto slice = Deadline::after(pause);
      fixed = root_->get(members, slice.when() < deadline.when() ? slice : deadline);
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) throw;
    }
  }
  candidates_ = decode(fixed);
  if (std::find(candidates_.begin(), candidates_.end(), terms_.own) == candidates_.end())
    throw Error(ErrorCode::peer_silent,
                fmt::format("rank {} is not among the survivors ({}): the others gave it up while "
                            "it was stopped or cut off. Start it again",
                            terms_.own, format_rank_set(candidates_)))
        .with_rank(terms_.own);
  return candidates_;
}

void Survivors::connected(const std::string& others) noexcept {
  try {
    const auto all = static_cast<int64_t>(candidates_.size());
    if (root_->add(epoch_path() + "/left", 1) < all) return;
    for (int epoch = first_epoch_; epoch <= epoch_; ++epoch)
      root_->erase_all(epoch_path(epoch) + "/");
    root_->erase_all(others + "/");
    if (candidates_.size() < terms_.launched.size()) return;
    for (int epoch = first_epoch_ + 1; epoch <= epoch_; ++epoch) root_->erase(members_key(epoch));
  } catch (const std::exception&) {
    // The store is gone or does not answer any more.
  }
}

void Survivors::not_connected(const Error& error) {
  const auto* told = dynamic_cast<const ToldError*>(&error);
  const int number = error.rank();
  if (number < 0 || number >= static_cast<int>(candidates_.size())) throw Error(error);
  const int rank = candidates_[static_cast<size_t>(number)];
  if (rank == terms_.own) throw Error(error);
  const bool gave_itself_up = told != nullptr && told->gave_itself_up();
  if (gave_itself_up || ++complaints_[rank] >= kMostComplaints) given_up_.insert(rank);
}

}  // namespace tutti
