#include "tutti/core/membership/membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>

#include "tutti/base/standard_streams.h"
#include "tutti/base/text.h"
#include "tutti/core/calls/communicator_state.h"
#include "tutti/core/meeting/attempt.h"
#include "tutti/core/meeting/rounds.h"
#include "tutti/core/membership/survivors.h"
#include "tutti/core/watch/watched_store.h"

namespace tutti {

namespace {

// Returns the prefix of one communicator's keys in the store, for its splits and epochs. It is
// hashed, so its length does not grow with the number of splits. The keys with which the ranks met
// have another prefix, because they are erased earlier. `made_by` must be unique to this
// communicator and equal on all its ranks.
std::string path_of(const Options& options, std::string_view made_by) {
  return fmt::format("{}/c{:016x}{:016x}", options.job, hash_text(made_by), hash_text(made_by, 1));
}

// Keys that all ranks of a communicator use together. The last rank to leave erases them. A rank
// that died never leaves, so its communicator's keys stay until shrink() erases them.
class SharedKeys {
 public:
  SharedKeys(std::shared_ptr<Store> root, std::string path, int ranks)
      : root_(std::move(root)), path_(std::move(path)), ranks_(ranks) {}
  SharedKeys(const SharedKeys&) = delete;
  ~SharedKeys() {
    try {
      const auto store = bounded(root_, Deadline::after(kLeaveSeconds));
      if (store->add(path_ + "/left", 1) == ranks_) store->erase_all(path_ + "/");
    } catch (const std::exception&) {
      // The store is gone or does not answer any more.
    }
  }

 private:
  const std::shared_ptr<Store> root_;
  const std::string path_;
  const int ranks_;
};

std::string splits_path(const CommunicatorState& parent) {
  return fmt::format("{}/e{}", parent.path, parent.epoch);
}

// Returns the error that ended the parent communicator, if any. The error's rank is a rank of the
// parent.
using ParentsEnd = std::function<std::optional<Error>()>;
ParentsEnd end_of(const CommunicatorState& parent) {
  return [weak = std::weak_ptr(parent.engine)]() -> std::optional<Error> {
    const auto engine = weak.lock();
    return engine ? engine->broken() : std::nullopt;
  };
}

// Returns an error source that converts the error's rank to an index into `members`, or to -1 if
// the rank is not a member.
ParentsEnd in_numbers_of(const std::vector<int>& members, ParentsEnd end) {
  return [members, end = std::move(end)] {
    auto error = end();
    if (error) {
      const auto member = std::find(members.begin(), members.end(), error->rank());
      error->with_rank(member == members.end() ? -1 : static_cast<int>(member - members.begin()));
    }
    return error;
  };
}

// Makes a communicator of some ranks of the parent. `members` lists them; the new rank is the index
// in this list.
std::shared_ptr<CommunicatorState> make_child(const CommunicatorState& parent,
                                              const std::vector<int>& members,
                                              const std::string& path, Deadline deadline,
                                              std::shared_ptr<Inheritance> inheritance,
                                              ParentsEnd end) {
  Options options = parent.options;
  const auto own = std::find(members.begin(), members.end(), parent.options.rank);
  options.rank = static_cast<int>(own - members.begin());
  options.size = static_cast<int>(members.size());
  options.timeline.clear();  // only the parent writes the timeline
  Membership membership;
  membership.root = parent.membership.root;
  membership.listener = parent.membership.listener;
  membership.path = path;
  membership.deadline = deadline;
  for (const int member : members) {
    const auto& place = parent.engine->context().places[static_cast<size_t>(member)];
    membership.members.push_back({place.world_rank, place.incarnation});
    membership.local_ranks.push_back(place.local_rank);
  }
  membership.own.place = own_place(options, membership.members[static_cast<size_t>(options.rank)]);
  membership.inheritance = std::move(inheritance);
  membership.parents_end = std::move(end);
  return std::make_shared<CommunicatorState>(std::move(options), std::move(membership));
}

// Makes the error that split() throws if the parent has ended because of `end`.
Error split_with(const Error& end) {
  return Error(end.code(), fmt::format("split: {}", end.what())).with_rank(end.rank());
}

// Returns the objects that the parent's backend passes on to the backend of the new communicator. A
// rank with a negative color takes part in this exchange and returns nothing.
std::shared_ptr<Inheritance> inherit(const CommunicatorState& parent, int color,
                                     const std::vector<int>& members, const std::string& path) {
  Context context = parent.engine->context();
  context.deadline = Deadline::after(parent.options.connect_timeout);
  context.store = make_watched_store(
      make_prefix_store(bounded(parent.membership.root, context.deadline), path + "/inheritance/"),
      [end = end_of(parent)] {
        if (const auto error = end()) throw split_with(*error);
      });
  const auto own = std::find(members.begin(), members.end(), context.rank);
  return parent.engine->backend().split(context, color, static_cast<int>(own - members.begin()));
}

// Converts the error of a communicator that could not be made. The error's rank becomes a rank of
// the caller's communicator.
Error as_seen_from(const std::vector<int>& members, std::string_view what, const Error& error) {
  const int number = error.rank();
  if (number < 0 || number >= static_cast<int>(members.size())) return error;
  const int rank = members[static_cast<size_t>(number)];
  const auto same = fmt::format(" (there rank {} is rank {} of this one)", number, rank);
  return Error(error.code(),
               fmt::format("{}: {}{}", what, error.what(), number == rank ? std::string() : same))
      .with_rank(rank)
      .with_tensor(error.tensor());
}

}  // namespace

std::shared_ptr<CommunicatorState> create(Options given) {
  complete_standard_streams();  // must be done before the first socket is opened
  auto options = complete_options(std::move(given));
  auto membership = join_job(options);
  auto state = std::make_shared<CommunicatorState>(std::move(options), std::move(membership));
  state->path = path_of(state->options, state->membership.path);
  leave_round(state->options, state->membership);
  return state;
}

std::shared_ptr<CommunicatorState> split(const CommunicatorState& parent, int number,
                                         std::span<const SplitChoice> choices) {
  const int color = choices[static_cast<size_t>(parent.options.rank)].color;
  std::vector<std::pair<int, int>> order;  // (key, rank) of each rank with this rank's color
  for (int rank = 0; rank < parent.options.size; ++rank) {
    const auto& theirs = choices[static_cast<size_t>(rank)];
    if (theirs.color == color) order.emplace_back(theirs.key, rank);
  }
  const auto path = fmt::format("{}/split{}", splits_path(parent), number);
  const SharedKeys keys(parent.membership.root, path, parent.options.size);
  std::sort(order.begin(), order.end());
  std::vector<int> members;
  for (const auto& [key, rank] : order) members.push_back(rank);
  // While this object exists, the engine notices a member that stops answering, although no
  // operation is pending.
  const Engine::WatchOverPeers watch(parent.engine);
  auto inheritance = inherit(parent, color, members, path);
  if (color < 0) return nullptr;
  try {
    auto state = make_child(parent, members, fmt::format("{}/{}", path, color),
                            Deadline::after(parent.options.connect_timeout), std::move(inheritance),
                            in_numbers_of(members, end_of(parent)));
    state->path = path_of(state->options, state->membership.path);
    return state;
  } catch (const Error& error) {
    const auto seen = as_seen_from(members, "split", error);
    // The parent knows best which of its ranks is gone, so its error is preferred. An error about
    // this rank itself is thrown unchanged.
    const auto end = parent.engine->broken();
    if (end && (error.rank() < 0 || seen.rank() != parent.options.rank)) throw split_with(*end);
    throw Error(seen);
  }
}

namespace {

// Returns the seconds for the first attempt to connect the survivors. Each further attempt may take
// twice as long. The first limit is short, because a rank that is stopped during the attempt delays
// all others.
double patience(const Options& options) { return std::max(5.0, 2 * options.peer_timeout); }

// Makes the error of a rank that cannot reach the store. It contains the probable reason.
Error store_is_gone(const CommunicatorState& parent, const Error& error) {
  const auto& options = parent.options;
  const auto why =
      options.serve_store
          ? fmt::format(
                "it lived in rank 0 of the job, which was lost, so the job ends. Start it "
                "under tutti-run, which holds the store itself")
          : fmt::format(
                "rank {} is cut off from it, or the process that held it has ended. Start this "
                "rank again",
                options.rank);
  return Error(ErrorCode::unavailable,
               fmt::format("shrink: the job's store {} does not answer ({}): {}", options.store,
                           error.what(), why))
      .with_rank(options.serve_store ? -1 : options.rank);
}

// Returns a source of errors that end the shrink, or null. If the parent has already ended, its
// error is the reason for the shrink and must not end it. If the parent is still running, it may
// report that a member is lost.
ParentsEnd end_during_shrink(const CommunicatorState& parent, const std::vector<int>& members) {
  if (parent.engine->broken()) return nullptr;
  return [end = in_numbers_of(members, end_of(parent))] {
    auto error = end();
    return error && error->rank() >= 0 ? error : std::nullopt;
  };
}

bool is_store_gone(const CommunicatorState& parent, Deadline deadline) {
  try {
    bounded(parent.membership.root, deadline)->try_get(parent.path);
    return false;
  } catch (const Error& error) {
    return error.code() == ErrorCode::unavailable;
  }
}

}  // namespace

std::shared_ptr<CommunicatorState> shrink(const CommunicatorState& parent, Deadline deadline) {
  const int own = parent.options.rank;
  Survivors::Terms terms{.own = own, .settle = std::max(1.0, parent.options.peer_timeout)};
  for (const auto& place : parent.engine->context().places)
    terms.launched.push_back({place.world_rank, place.incarnation});
  terms.first_ranks = parent.first_ranks;
  if (const int gone = parent.engine->gone_rank(); gone >= 0 && gone != own)
    terms.given_up.insert(gone);
  parent.options.observe("shrink");
  const Engine::WatchOverPeers watch(parent.engine);
  try {
    Survivors survivors(bounded(parent.membership.root, deadline), parent.path, parent.epoch,
                        std::move(terms));
    for (double seconds = patience(parent.options);; seconds *= 2) {
      const auto members = survivors.agree(deadline);
      const auto attempt = Deadline::after(seconds);
      try {
        auto state = make_child(parent, members, survivors.epoch_path(),
                                attempt.when() < deadline.when() ? attempt : deadline, nullptr,
                                end_during_shrink(parent, members));
        state->path = parent.path;
        state->epoch = survivors.epoch();
        state->first_ranks = survivors.first_ranks();
        // All survivors have finished the operations and splits of the parent, so its keys can be
        // erased.
        survivors.connected(splits_path(parent));
        return state;
      } catch (const Error& error) {
        const bool is_forgotten = dynamic_cast<const ForgottenAttempt*>(&error) != nullptr;
        if (is_forgotten && !deadline.passed()) continue;  // the next epoch lists its members
        const auto seen = as_seen_from(members, "shrink", error);
        if (error.rank() < 0 || seen.rank() == own) throw seen;
        survivors.not_connected(error);
        if (!deadline.passed()) continue;
        throw Error(ErrorCode::timeout, fmt::format("{}; the deadline has passed", seen.what()))
            .with_rank(seen.rank());
      }
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable || !is_store_gone(parent, deadline)) throw;
    throw store_is_gone(parent, error);
  }
}

}  // namespace tutti
