#include "tutti/core/meeting/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

// Keys of the job: the first round that is still in the store, and the number of deaths known
// before it.
constexpr auto* kFirstKey = "first";
constexpr auto* kDeathsBeforeKey = "deaths";
// Keys of a round: the number of ranks that have left it, and a mark that all ranks have left.
constexpr auto* kLeftKey = "left";
constexpr auto* kEmptyKey = "empty";

enum class RoundState : uint8_t { open, failed, connected, empty };

// One rank's view of the job's rounds (attempts to make a first communicator).
class Rounds {
 public:
  Rounds(const Options& options, std::shared_ptr<Store> root)
      : options_(options), root_(std::move(root)) {}

  std::string path(int64_t round) const { return fmt::format("{}/{}", options_.job, round); }
  std::shared_ptr<Store> store(int64_t round) const {
    return make_prefix_store(root_, path(round) + "/");
  }
  int64_t first() const { return number_at(fmt::format("{}/{}", options_.job, kFirstKey)); }
  // Returns the number of deaths that were known when the previous round ended.
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
    // Looks at the result without a rank (-1), because this process may have had another rank in
    // that round.
    if (!ToldFailure(*store, "attempt", -1, INT_MAX).look()) return RoundState::open;
    return store->try_get(kEmptyKey) ? RoundState::empty : RoundState::connected;
  } catch (const ToldError&) {
    return RoundState::failed;
  }
}

// Erases the rounds up to `last` that no rank needs any more. This rank is or was in round `last`.
// Several ranks may do this at the same time. The index of the first round only grows, and it grows
// before the keys are erased. So if a rank finds a round without keys, it sees from that index that
// the round has ended.
void Rounds::forget(int64_t last) const {
  const int64_t first = this->first();
  int64_t end = first;
  for (int64_t round = first; round <= last; ++round) {
    const auto state = state_of(round);
    // A round before `last` may still be open, because two threads of one rank may be in different
    // rounds. A rank that is killed before it leaves its round delays the other ranks' cleanup by
    // at most kKeptRounds rounds.
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

// Tries to enter this rank into an attempt. Returns which process has entered as this rank.
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

// Fails the round. Other ranks may still wait in it for an earlier process, which this process
// replaces.
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

// Returns true if no other call of this process, as any rank, was in the attempt.
bool is_new_here(const PlaceRecord& own, Store& store) {
  const auto written = fmt::format("{} {}", own.place.pid, own.call);
  return store.set_once(been_key(own), written) == written;
}

// Returns whether the attempt has ended. A failure is thrown once per process, even if the process
// enters later, so that all ranks retry together. Two kinds of failures are not thrown. If the
// failure names this rank, the other ranks published it because this rank was missing. If this
// process was restarted, the failure concerns the process that it replaces.
bool is_over(const Options& options, const PlaceRecord& own, const Rounds& rounds, int64_t round) {
  const auto store = rounds.store(round);
  try {
    // Looks at the result without a rank (-1), because this process may have had another rank in
    // that round.
    return ToldFailure(*store, "attempt", -1, INT_MAX).look();
  } catch (const ToldError& failure) {
    const bool concerns = own.place.incarnation == 0 && failure.rank() != options.rank;
    if (concerns && is_new_here(own, *store)) {
      if (rounds.first() <= round) throw Error(failure);
      // The store erased the round after it returned the failure, and with it the note that this
      // process has seen the failure. So is_new_here() was wrong, and its new note is erased.
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
      // The store has just erased the round, so entering it does not count.
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
    // Otherwise another thread of this process is in this round, for another communicator. This
    // call then takes part in the next round. All ranks make their communicators in the same order.
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
    // The store may be gone with its keys. Otherwise the keys stay, as after a round in which a
    // rank died.
  }
}

}  // namespace tutti
