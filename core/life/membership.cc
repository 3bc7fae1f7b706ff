#include "tutti/core/life/membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>

#include "tutti/base/text.h"
#include "tutti/core/life/communicator_state.h"
#include "tutti/core/watch/death.h"

namespace tutti {

namespace {

// A communicator of some members of another one: ranks are their places in `members`.
std::shared_ptr<CommunicatorState> make_child(const CommunicatorState& parent,
                                              const std::vector<int>& members,
                                              const std::string& path,
                                              std::shared_ptr<Inheritance> inheritance) {
  Options options = parent.options;
  const auto own = std::find(members.begin(), members.end(), parent.options.rank);
  options.rank = static_cast<int>(own - members.begin());
  options.size = static_cast<int>(members.size());
  options.timeline.clear();  // the parent's
  Membership membership = parent.membership;
  membership.store = make_prefix_store(parent.membership.root, path + "/");
  membership.world_ranks.clear();
  membership.local_ranks.clear();
  for (const int member : members) {
    const auto& place = parent.engine->context().places[static_cast<size_t>(member)];
    membership.world_ranks.push_back(place.world_rank);
    membership.local_ranks.push_back(place.local_rank);
  }
  membership.inheritance = std::move(inheritance);
  auto state = std::make_shared<CommunicatorState>(std::move(options), std::move(membership));
  state->path = path;
  state->epoch = parent.epoch;
  return state;
}

// What the backend leaves to the one of the members of a color; a color < 0 has none.
std::shared_ptr<Inheritance> inherit(const CommunicatorState& parent, int color,
                                     const std::vector<int>& members, const std::string& path) {
  Context context = parent.engine->context();
  context.store = make_prefix_store(parent.membership.root, path + "/inheritance/");
  context.deadline = Deadline::after(parent.options.connect_timeout);
  const auto own = std::find(members.begin(), members.end(), context.rank);
  return parent.engine->backend().split(context, color, static_cast<int>(own - members.begin()));
}

}  // namespace

std::shared_ptr<CommunicatorState> split(const CommunicatorState& parent, int number,
                                         std::span<const SplitChoice> choices) {
  const int color = choices[static_cast<size_t>(parent.options.rank)].color;
  std::vector<std::pair<int, int>> order;  // (key, rank) of the ranks of this rank's color
  for (int rank = 0; rank < parent.options.size; ++rank) {
    const auto& theirs = choices[static_cast<size_t>(rank)];
    if (theirs.color == color) order.emplace_back(theirs.key, rank);
  }
  const auto path = fmt::format("{}/e{}/split{}", parent.path, parent.epoch, number);
  std::sort(order.begin(), order.end());
  std::vector<int> members;
  for (const auto& [key, rank] : order) members.push_back(rank);
  auto inheritance = inherit(parent, color, members, path);
  if (color < 0) return nullptr;
  return make_child(parent, members, fmt::format("{}/{}", path, color), std::move(inheritance));
}

// Every survivor writes that it lives and whom it knows to be dead. Once everybody who is not known
// to be dead has written, or the settling time passed, the first to notice fixes the list for all.
std::shared_ptr<CommunicatorState> shrink(const CommunicatorState& parent, Deadline deadline) {
  const int own = parent.options.rank, size = parent.options.size;
  const int epoch = parent.epoch + 1;
  const auto path = fmt::format("{}/epoch{}", parent.path, epoch);
  const auto store = make_prefix_store(parent.membership.root, path + "/");
  const auto alive = [](int rank) { return fmt::format("alive/{}", rank); };
  const int gone_rank = parent.engine->gone_rank();
  const int dead = gone_rank != own ? gone_rank : -1;
  std::string decided;
  try {
    store->set(alive(own), std::to_string(dead));
    const auto settled = Deadline::after(std::max(1.0, parent.options.peer_timeout));
    while (true) {
      std::set<int> gone;
      std::vector<int> here;
      for (int other = 0; other < size; ++other) {
        const auto word = store->try_get(alive(other));
        if (!word) {
          const auto world = parent.membership.world_ranks[static_cast<size_t>(other)];
          if (parent.membership.root->try_get(death_key(world))) gone.insert(other);
          continue;
        }
        here.push_back(other);
        if (const auto number = parse_integer(*word, 0, size))
          gone.insert(static_cast<int>(*number));
      }
      std::erase_if(here, [&](int other) { return gone.contains(other); });
      const bool everybody = static_cast<int>(here.size() + gone.size()) == size;
      if (const auto fixed = store->try_get("members")) {
        decided = *fixed;
        break;
      }
      if (everybody || settled.passed()) {
        decided = store->set_once("members", fmt::format("{}", fmt::join(here, " ")));
        break;
      }
      if (deadline.passed())
        throw Error(
            ErrorCode::timeout,
            fmt::format("shrink: only {} came before the deadline; every survivor must call it",
                        format_rank_set(here)));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable) throw;
    throw Error(
        ErrorCode::unavailable,
        fmt::format("shrink: the job's store is gone ({}); it lived in the rank that was lost, "
                    "so the job ends. Start it under tutti-run, which holds the store itself",
                    error.what()));
  }
  std::vector<int> members;
  for (const auto& word : split_text(decided, ' '))
    members.push_back(static_cast<int>(parse_integer(word, 0, size).value_or(0)));
  if (std::find(members.begin(), members.end(), own) == members.end())
    throw Error(
        ErrorCode::peer_silent,
        fmt::format("rank {} is not among the survivors ({}): the others gave it up while it "
                    "was stopped or cut off. It must start anew",
                    own, format_rank_set(members)))
        .with_rank(own);
  auto state = make_child(parent, members, path, nullptr);
  state->epoch = epoch;
  return state;
}

}  // namespace tutti
