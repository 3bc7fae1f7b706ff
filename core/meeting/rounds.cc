#include "tutti/core/meeting/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

// Of the job: the first round that is not forgotten, and how many deaths were known before it.
constexpr auto* kFirstKey = "first";
constexpr auto* kDeathsBeforeKey = "deaths";
// Of a round: how many of its ranks have left it, and that all have.
constexpr auto* kLeftKey = "left";
constexpr auto* kEmptyKey = "empty";

enum class RoundState : uint8_t { open, failed, connected, empty };

// The rounds as one rank of the job sees them.
class Rounds {
 public:
  Rounds(const Options& options, std::shared_ptr<Store> root)
      : options_(options), root_(std::move(root)) {}

  std::string path(int64_t round) const { return fmt::format("{}/{}", options_.job, round); }
  std::shared_ptr<Store> store(int64_t round) const {
    return make_prefix_store(root_, path(round) + "/");
  }
  int64_t first() const { return number_at(fmt::format("{}/{}", options_.job, kFirstKey)); }
  // How many deaths were known when the round before this one ended.
  size_t deaths_before(int64_t round) const {
    if (round == 0) return 0;
    const auto forgotten = number_at(fmt::format("{}/{}", options_.job, kDeathsBeforeKey));
    return static_cast<size_t>(
        std::max(forgotten, number_at(path(round - 1) + "/" + Attempt::kDeathsKey)));
  }
  void forget(int64_t last) const;

 private:
  int64_t number_at(const std::string& key) const {
    const auto text = root_->try_get(key);
    return text ? parse_integer(*text, 0, INT64_MAX).value_or(0) : 0;
  }
  RoundState state_of(int64_t round) const;

  const Options& options_;
  const std::shared_ptr<Store> root_;
};

RoundState Rounds::state_of(int64_t round) const {
  const auto store = this->store(round);
  try {
    // As none of its ranks, which may have had other numbers then.
    if (!ToldFailure(*store, "attempt", -1, INT_MAX).look()) return RoundState::open;
    return store->try_get(kEmptyKey) ? RoundState::empty : RoundState::connected;
  } catch (const ToldError&) {
    return RoundState::failed;
  }
}

// Forgets what no rank looks at any more of the rounds up to `last`, in which this rank is or was.
// Any number of ranks may do so at once: the first round only rises, and it rises before the keys
// go, so that a rank which finds a round without keys learns there that it is over.
void Rounds::forget(int64_t last) const {
  const int64_t first = this->first();
  int64_t end = first;
  for (int64_t round = first; round <= last; ++round) {
    const auto state = state_of(round);
    // Two threads of each rank may be in two rounds at once. A rank that was killed before it left
    // its round holds up the others for so many rounds only.
    const bool is_old = last - round >= kKeptRounds;
    if (state == RoundState::open || (state == RoundState::connected && !is_old)) break;
    if (state == RoundState::empty || is_old) end = round + 1;
  }
  if (end == first) return;
  root_->raise(fmt::format("{}/{}", options_.job, kDeathsBeforeKey),
               static_cast<int64_t>(deaths_before(end)));
  root_->raise(fmt::format("{}/{}", options_.job, kFirstKey), end);
  for (int64_t round = first; round < end; ++round) root_->erase_all(path(round) + "/");
}

Error two_processes(int rank) {
  return Error(ErrorCode::invalid_argument,
               fmt::format("two processes say that they are rank {}; give each rank its own number "
                           "(TUTTI_RANK), or another TUTTI_JOB to a second job on this store",
                           rank))
      .with_rank(rank);
}

enum class Holder : uint8_t { this_call, this_process, earlier_incarnation, another };

// Which process has this rank's place in an attempt, after this one has asked for it.
Holder take_place(const PlaceRecord& own, int rank, Store& store) {
  const auto written = encode_place(own);
  const auto stands = store.set_once(Attempt::place_key(rank), written);
  if (stands == written) return Holder::this_call;
  PlaceRecord other;
  try {
    other = decode_place(rank, stands);
  } catch (const Error&) {
    return Holder::another;
  }
  if (other.place.pid == own.place.pid && other.place.host == own.place.host &&
      other.place.shares_pids(own.place))
    return Holder::this_process;
  return other.place.world_rank == own.place.world_rank &&
                 other.place.incarnation < own.place.incarnation
             ? Holder::earlier_incarnation
             : Holder::another;
}

// For the ranks that wait in it for the process that this one replaces.
void end_round(const Options& options, Store& store) {
  try {
    ToldFailure(store, "attempt", options.rank, options.size)
        .fail(Error(ErrorCode::peer_lost,
                    fmt::format("rank {} ended while the ranks were connecting, and was started "
                                "again",
                                options.rank)));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) throw;
  }
}

std::string been_key(const PlaceRecord& own) {
  return fmt::format("been/{}/{}", own.place.world_rank, own.place.incarnation);
}

// True if no other call of this process, whatever its rank was then, has been in the attempt.
bool is_new_here(const PlaceRecord& own, Store& store) {
  const auto written = fmt::format("{} {}", own.place.pid, own.call);
  return store.set_once(been_key(own), written) == written;
}

// Whether the attempt is over. Of a failure this process hears once, even if it comes only now:
// then all ranks call again together. One that the others failed because this rank was missing, or
// that ended the process that it replaces, is for the others.
bool is_over(const Options& options, const PlaceRecord& own, const Rounds& rounds, int64_t round) {
  const auto store = rounds.store(round);
  try {
    // As none of its ranks, which may have had other numbers then.
    return ToldFailure(*store, "attempt", -1, INT_MAX).look();
  } catch (const ToldError& failure) {
    const bool concerns = own.place.incarnation == 0 && failure.rank() != options.rank;
    if (concerns && is_new_here(own, *store)) {
      if (rounds.first() <= round) throw Error(failure);
      // The store forgot the round since it told the failure, and that this process had heard it.
      store->erase(been_key(own));
    }
    return true;
  }
}

}  // namespace

void enter_round(const Options& options, Membership& membership) {
  static std::atomic<int64_t> calls{0};
  auto& own = membership.own;
  own.place = own_place(
      options, {options.launched_as < 0 ? options.rank : options.launched_as, options.incarnation});
  own.call = calls++;
  const Rounds rounds(options, bounded(membership.root, membership.deadline));
  const auto first = rounds.first();
  for (auto round = first;; ++round) {
    const auto store = rounds.store(round);
    if (is_over(options, own, rounds, round)) continue;
    const auto holder = take_place(own, options.rank, *store);
    if (const auto now_first = rounds.first(); now_first > round) {
      // The store forgot the round at this moment, so this place in it is none.
      if (holder == Holder::this_call) store->erase(Attempt::place_key(options.rank));
      round = now_first - 1;
      continue;
    }
    if (holder == Holder::another) throw two_processes(options.rank);
    if (holder == Holder::this_call) {
      is_new_here(own, *store);
      membership.path = rounds.path(round);
      membership.round = round;
      membership.first_death = rounds.deaths_before(round);
      if (round - first >= kKeptRounds) rounds.forget(round);
      return;
    }
    // Else another thread of this process is in there: the ranks make their communicators in one
    // order.
    if (holder == Holder::earlier_incarnation) end_round(options, *store);
  }
}

void leave_round(const Options& options, const Membership& membership) noexcept {
  try {
    const Rounds rounds(options, bounded(membership.root, Deadline::after(kLeaveSeconds)));
    const auto store = rounds.store(membership.round);
    if (store->add(kLeftKey, 1) < options.size) return;
    store->set(kEmptyKey, "yes");
    rounds.forget(membership.round);
  } catch (const std::exception&) {
    // The store is gone with its keys; or they stay, as those of a round that a rank died in.
  }
}

}  // namespace tutti
