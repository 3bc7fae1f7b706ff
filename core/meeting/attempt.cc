#include "tutti/core/meeting/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/core/watch/watched_store.h"

namespace tutti {

namespace {

// The ranks' places (where each rank runs) are stored in blocks. Each rank then reads a few keys
// instead of one per rank, and no value becomes too long for the store.
constexpr int kBlock = 64;
constexpr char kBetweenPlaces = '\0';

// Seconds to wait for the cause of a failure. A launcher needs some time to notice how a rank
// ended. A rank needs some time to publish why it gave up.
constexpr double kPatienceForCauses = 0.3;
// After this many seconds, one rank reports which ranks are missing. It repeats the report at
// growing intervals.
constexpr double kFirstReport = 5;

// Returns the key that marks one rank as done with `part`. The key `part` itself holds the number
// of these ranks.
std::string key_of(const char* part, int rank) { return fmt::format("{}/{}", part, rank); }

std::string block_key(int block) { return fmt::format("places/{}", block); }

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

ForgottenAttempt::ForgottenAttempt(int own)
    : Error(ErrorCode::peer_silent,
            fmt::format("rank {} finds that the others have left the attempt to connect: they went "
                        "on or gave it up while this rank was stopped or cut off. Start it again",
                        own)) {
  with_rank(own);
}

std::string Attempt::place_key(int rank) { return key_of("place", rank); }

Attempt::Attempt(const Options& options, const Membership& membership)
    : options_(options),
      membership_(membership),
      store_(
          make_prefix_store(bounded(membership.root, membership.deadline), membership.path + "/")),
      failure_(*store_, "attempt", options.rank, options.size),
      deaths_(bounded(membership.root, membership.deadline)),
      members_(membership.members),
      report_after_(kFirstReport) {}

std::shared_ptr<Attempt> Attempt::begin(const Options& options, const Membership& membership) {
  std::shared_ptr<Attempt> attempt(new Attempt(options, membership));
  // The watched store has only a weak pointer to the attempt, because a backend may keep the store
  // for longer.
  attempt->watched_ = make_watched_store(attempt->store_, [weak = std::weak_ptr(attempt)] {
    if (const auto attempt = weak.lock()) attempt->look();
  });
  return attempt;
}

// --- the steps of an attempt --------------------------------------------------------------------

std::vector<Place> Attempt::meet() {
  store_->set(place_key(options_.rank), encode_place(membership_.own));
  check_terms(store_->set_once("terms", encode_terms(options_)), options_);
  if (store_->add("places", 1) == options_.size) gather_places();
  std::vector<Place> places;
  try {
    places = read_places();
  } catch (const Error& error) {
    if (!is_own_deadline(error)) throw;
    const auto late = missing("place");
    if (!late.empty())
      throw Error(
          ErrorCode::timeout,
          fmt::format("rank {} waited {:.3g} s for {} of {} to start; did it die, or is "
                      "TUTTI_CONNECT_TIMEOUT too short?",
                      options_.rank, seconds_waited(), format_rank_set(late), options_.size))
          .with_rank(late.front());
    // The store has all places. So one rank wrote its place and ended before it increased the
    // count. The other ranks will notice which rank it was when they connect.
    gather_places();
    places = read_places();
  }
  if (static_cast<int>(places.size()) != options_.size)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("the store lists {} ranks, expected {}", places.size(), options_.size));
  members_.clear();
  for (const auto& place : places) members_.push_back({place.world_rank, place.incarnation});
  awaited_ = "connected";
  return places;
}

std::vector<Place> Attempt::read_places() {
  std::vector<Place> places;
  for (int block = 0; block * kBlock < options_.size; ++block) {
    const auto text = watched_->get(block_key(block), membership_.deadline);
    for (const auto& record : split_text(text, kBetweenPlaces))
      places.push_back(decode_place(static_cast<int>(places.size()), record).place);
  }
  return places;
}

// Returns whether the error only means that this rank's own deadline has passed. A timeout may also
// come from another rank, or be the error that ended the parent communicator.
bool Attempt::is_own_deadline(const Error& error) const {
  return error.code() == ErrorCode::timeout && membership_.deadline.passed() &&
         dynamic_cast<const ToldError*>(&error) == nullptr;
}

// Stores the blocks of places, for all ranks. If the place of a counted rank is missing, all keys
// of the attempt have been erased.
void Attempt::gather_places() {
  for (int first = 0; first < options_.size; first += kBlock) {
    std::string block;
    for (int rank = first; rank < std::min(first + kBlock, options_.size); ++rank) {
      if (rank > first) block += kBetweenPlaces;
      const auto place = store_->try_get(place_key(rank));
      if (!place) throw ForgottenAttempt(options_.rank);
      block += *place;
    }
    store_->set(block_key(first / kBlock), block);
  }
}

void Attempt::all_connected() {
  store_->set(key_of("connected", options_.rank), "yes");
  if (store_->add("connected", 1) == options_.size) {
    keep_deaths();
    return failure_.succeed();
  }
  try {
    failure_.await_success(*watched_, membership_.deadline);
  } catch (const Error& error) {
    if (!is_own_deadline(error)) throw;
    const auto late = missing("connected");
    // If no rank is late, the last rank ended before it increased the count.
    if (late.empty()) return failure_.succeed();
    failure_.fail(
        Error(ErrorCode::timeout,
              fmt::format("rank {} has its connections and waited {:.3g} s for {} of {} to have "
                          "theirs; did it die, or is TUTTI_CONNECT_TIMEOUT too short?",
                          options_.rank, seconds_waited(), format_rank_set(late), options_.size))
            .with_rank(late.front()));
    // failure_.fail() returns if the ranks decided just before that all are connected.
  }
}

void Attempt::fail(const Error& error) {
  // The other ranks have left the attempt, so no rank needs to be informed.
  if (const auto* forgotten = dynamic_cast<const ForgottenAttempt*>(&error))
    throw ForgottenAttempt(*forgotten);
  const bool blames = error.rank() >= 0 && error.rank() != options_.rank;
  // Some backends wait for another rank's key and only report that the deadline has passed.
  const bool was_late = is_own_deadline(error);
  if (blames || was_late) {
    const bool saw_end =
        error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::unavailable;
    try {
      if (was_late) throw_if_forgotten();
      const auto patience = Deadline::after(saw_end ? kPatienceForCauses : 0);
      do {
        look();
        if (saw_end) Clock::sleep_for(std::chrono::milliseconds(5));
      } while (!patience.passed());
    } catch (const ToldError&) {
      throw;
    } catch (const ForgottenAttempt&) {
      throw;
    } catch (const Error& cause) {
      if (cause.code() == ErrorCode::peer_lost) throw;
      // The store is gone. This rank's own error is then the best known cause.
    }
  }
  keep_deaths();
  failure_.fail(error);
  throw Error(error);
}

// --- what ends an attempt -----------------------------------------------------------------------

// Ends the attempt if there is a reason. After its success, the communicator handles all failures.
void Attempt::look() {
  if (failure_.look()) return;
  throw_first_death();
  if (membership_.parents_end)
    if (const auto end = membership_.parents_end())
      end->rank() < 0 ? failure_.fail_from_outside(*end) : failure_.fail(*end);
  report();
}

void Attempt::throw_first_death() {
  const auto& deaths = deaths_.look();
  for (size_t i = members_.empty() ? membership_.first_death : 0; i < deaths.size(); ++i) {
    const auto death = deaths[i];  // a copy, because keep_deaths() may reallocate the list
    const int rank = rank_of(death);
    if (rank < 0 || rank == options_.rank) continue;
    keep_deaths();
    failure_.fail(
        Error(ErrorCode::peer_lost,
              fmt::format("rank {} (host {}, pid {}) {} while the ranks were connecting. Make a "
                          "new Communicator to go on with {} ranks.",
                          rank, death.host, death.pid, describe_death(death), options_.size - 1))
            .with_rank(rank));
  }
}

// Returns the member that died, or -1 if the process was not a member. Before all places are known,
// the result is the rank that the launcher gave to the dead process. If another process has
// published its place as that rank, the result is -1.
int Attempt::rank_of(const Death& death) {
  if (!members_.empty()) {
    const auto found = std::find(members_.begin(), members_.end(), death.who);
    return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
  }
  if (death.who.rank >= options_.size) return -1;
  const auto text = store_->try_get(place_key(death.who.rank));
  if (!text) return death.who.rank;
  const auto place = decode_place(death.who.rank, *text).place;
  const bool is_dead = LaunchedRank{place.world_rank, place.incarnation} == death.who;
  return is_dead ? death.who.rank : -1;
}

// Stores the number of known deaths. The next attempt of a first communicator then waits for the
// processes that replace the dead ones.
void Attempt::keep_deaths() noexcept {
  try {
    if (membership_.members.empty())
      store_->set_once(kDeathsKey, std::to_string(deaths_.look().size()));
  } catch (const Error&) {
    // Without this number, the next attempt fails once more because of the same deaths.
  }
}

double Attempt::seconds_waited() const {
  return std::round(100 * seconds_since(membership_.begin)) / 100;
}

std::vector<int> Attempt::missing(const char* part) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.size; ++rank)
    if (!store_->try_get(key_of(part, rank))) ranks.push_back(rank);
  throw_if_forgotten();  // last, because another rank's key may be erased before this rank's
  return ranks;
}

// Throws if the attempt's keys were erased. This rank writes its place before anything can fail, so
// a missing place means that the keys are gone.
void Attempt::throw_if_forgotten() const {
  if (!store_->try_get(place_key(options_.rank))) throw ForgottenAttempt(options_.rank);
}

void Attempt::report() {
  const double waited = seconds_since(membership_.begin);
  if (waited < report_after_) return;
  report_after_ = 2 * waited;
  const auto own = std::to_string(options_.rank);
  if (options_.log_level < LogLevel::warning || store_->set_once("reporter", own) != own) return;
  const auto late = missing(awaited_);
  if (late.empty()) return;
  const auto line =
      fmt::format("{} of {} ranks {} after {:.0f} s; {} {} missing",
                  options_.size - static_cast<int>(late.size()), options_.size,
                  std::string_view(awaited_) == "place" ? "have started" : "are connected", waited,
                  format_rank_set(late), late.size() == 1 ? "is" : "are");
  options_.log ? options_.log(LogLevel::warning, line) : log_to_stderr(LogLevel::warning, line);
}

}  // namespace tutti
