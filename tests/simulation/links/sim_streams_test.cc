#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "tests/simulation/links/sim_network.h"
#include "tests/support/bulk.h"
#include "tutti/backends/stream/stream_core.h"

// Random messages between StreamCores over links that split them anywhere. A rank sleeps whenever
// it may. So a missing wake-up shows when no event is left although some rank is not done.

namespace tutti::simulation {
namespace {

using Bytes = std::vector<std::byte>;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using test::pattern;

#ifdef __SANITIZE_ADDRESS__
constexpr uint64_t kSeeds = 1000;
#else
constexpr uint64_t kSeeds = 10'000;
#endif

struct Message {
  int from = 0;
  int to = 0;
  MessageHeader header;
  Bytes data;
  Bytes received;
  bool is_wanted = true;  // otherwise its tag is discarded
  Ticket send = 0;
  Ticket receive = 0;
};

struct Conditions {
  bool has_faults = false;
  int deaf = -1;  // this rank is not notified when its links may move; -1: none
};

class StreamWorld {
 public:
  StreamWorld(uint64_t seed, const Conditions& conditions, LinkCounters& counters)
      : conditions_(conditions),
        world_(seed, 1),
        program_(seed, 2),
        schedule_(seed, 3),
        faults_(seed, 4),
        size_(static_cast<int>(world_.between(2, 3))),
        network_(
            events_, seed, size_, [&](int, int) { return draw_link(); }, counters) {
    // With little credit, small messages are announced first and wait for each other.
    std::optional<uint64_t> credit;
    if (world_.chance(700)) credit = uint64_t{512} << world_.below(6);
    for (int rank = 0; rank < size_; ++rank) {
      ranks_.push_back(std::make_unique<Rank>());
      auto& added = *ranks_.back();
      added.core = std::make_unique<StreamCore>(rank,
                                                network_.channels(rank,
                                                                  [this, rank] {
                                                                    if (rank != conditions_.deaf)
                                                                      wake_after(rank, {});
                                                                  }),
                                                credit);
      added.is_gone.resize(static_cast<size_t>(size_));
      added.controls.resize(static_cast<size_t>(size_));
    }
    draw_messages();
    if (conditions_.has_faults) draw_fault();
  }

  /// Runs the seed. Returns the error, or "".
  std::string run() {
    for (int rank = 0; rank < size_; ++rank) wake_after(rank, {});
    constexpr uint64_t kMostEvents = 1'000'000;
    for (; count_ < kMostEvents && fault_.empty(); ++count_) {
      if (!events_.run_next()) return verdict();
      trace_ =
          Random::mix(trace_ ^ static_cast<uint64_t>(events_.now().time_since_epoch().count()));
    }
    if (!fault_.empty()) return fault_;
    std::string still;
    for (int rank = 0; rank < size_; ++rank)
      if (at(rank).core) still += "; " + state_of(rank);
    return "there is no end" + still;
  }
  uint64_t trace() const { return trace_; }
  uint64_t events() const { return count_; }

 private:
  struct Rank {
    std::unique_ptr<StreamCore> core;  // null after it has left or was killed
    std::vector<std::function<void()>> posts;
    std::deque<std::function<void()>> control_posts;  // in the order of their posts
    std::vector<Message*> sends, receives;            // pending
    std::vector<std::deque<Bytes>> controls;          // the control messages to come from each peer
    std::vector<bool> is_gone;                        // by peer
    bool is_awake = false;
    bool is_leaving = false;
    bool is_killed = false;
  };
  Rank& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int any_rank(Random& random) {
    return static_cast<int>(random.below(static_cast<uint64_t>(size_)));
  }

  LinkShape draw_link() {
    const auto shape = LinkShape::draw(world_);
    is_wide_ &= std::min({shape.buffer, shape.most_written, shape.most_read}) > 10'000;
    return shape;
  }

  size_t draw_bytes() {
    // More than a rank reads in one call.
    if (program_.chance(3) && is_wide_) return program_.below(300'000);
    switch (program_.below(20)) {
      case 0:
        return 0;
      case 1:
        return program_.below(10'000);
      default:
        return program_.below(uint64_t{1} << program_.below(11));
    }
  }

  void draw_messages() {
    const auto count = static_cast<uint64_t>(program_.between(1, 30));
    for (uint64_t i = 0; i < count; ++i) {
      const int from = any_rank(program_);
      const int to =
          (from + 1 + static_cast<int>(program_.below(static_cast<uint64_t>(size_) - 1))) % size_;
      auto data = pattern(draw_bytes(), program_.next());
      if (program_.chance(200)) {
        at(to).controls[static_cast<size_t>(from)].push_back(data);
        at(from).control_posts.push_back(
            [this, from, to, data = std::move(data)] { at(from).core->post(to, data); });
        continue;
      }
      auto& message = messages_.emplace_back();
      message.from = from;
      message.to = to;
      message.header = {.tag = i, .key = static_cast<uint32_t>(program_.below(3))};
      if (program_.chance(100)) message.header.verdict = 4;
      message.data = std::move(data);
      message.received.resize(message.data.size());
      message.is_wanted = !program_.chance(100);
      at(from).posts.push_back([this, &message] {
        message.send = at(message.from).core->isend(message.to, message.header, message.data);
        at(message.from).sends.push_back(&message);
      });
      at(to).posts.push_back([this, &message] {
        auto& core = *at(message.to).core;
        if (!message.is_wanted) return core.discard(message.header.tag, message.header.tag);
        message.receive =
            core.irecv(message.from, message.header.tag, message.header.key, message.received);
        at(message.to).receives.push_back(&message);
      });
    }
    for (auto& rank : ranks_)
      for (size_t i = rank->posts.size(); i > 1; --i)
        std::swap(rank->posts[i - 1], rank->posts[program_.below(i)]);
  }

  void draw_fault() {
    const int one = any_rank(faults_), other = (one + 1) % size_;
    const microseconds when(faults_.below(uint64_t{1} << faults_.below(20)));
    const auto kind = faults_.below(5);
    events_.after(when, [this, one, other, kind] {
      auto& link = network_.link(one, other);
      switch (kind) {
        case 0:
          return link.reset();
        case 1:
          at(one).is_killed = true;
          network_.kill(one);
          return at(one).core.reset();
        case 2:
          link.half_open();
          return events_.after(milliseconds(300), [&link] { link.reset(); });
        case 3:
          return link.stall(milliseconds(faults_.below(1000)));
        default:
          return link.slow(milliseconds(faults_.below(100)), 1000 + faults_.below(100'000));
      }
    });
    may_lose_ = kind < 3;
  }

  void wake_after(int rank, Clock::duration delay) {
    if (delay == Clock::duration{} && std::exchange(at(rank).is_awake, true)) return;
    events_.after(delay, [this, rank] {
      if (at(rank).core) step(rank);
    });
  }

  void step(int number) {
    Rank& rank = at(number);
    StreamCore& core = *rank.core;
    rank.is_awake = false;
    for (auto posts = schedule_.below(4); posts > 0 && !rank.posts.empty(); --posts) {
      const auto post = std::move(rank.posts.back());
      rank.posts.pop_back();
      post();
    }
    if (!rank.control_posts.empty() && schedule_.chance(500)) {
      rank.control_posts.front()();
      rank.control_posts.pop_front();
    }
    bool moved = core.progress();
    moved |= look(number, rank);
    if (!fault_.empty()) return;
    const bool has_more = !rank.posts.empty() || !rank.control_posts.empty();
    if (!rank.is_leaving && !has_more && is_over(rank)) {
      rank.is_leaving = moved = true;
      core.begin_goodbye();
    }
    if (rank.is_leaving && core.is_flushed()) return rank.core.reset();
    if (moved || !core.arm()) return wake_after(number, {});
    // The rank goes on with its program, or checks whether its goodbyes have arrived.
    if (has_more) wake_after(number, microseconds(1 + schedule_.below(1000)));
    if (rank.is_leaving && core.is_written()) wake_after(number, milliseconds(2));
  }

  // Completes finished messages. Returns true if there were any.
  bool look(int number, Rank& rank) {
    const auto before = rank.sends.size() + rank.receives.size();
    std::erase_if(rank.sends, [&](Message* message) {
      const auto state = rank.core->test(message->send, nullptr);
      // A discarded message may fail, because its receiver may leave earlier.
      if (state == TransferState::failed && !may_lose_ && message->is_wanted)
        fault_ = "a send failed";
      return state != TransferState::pending;
    });
    std::erase_if(rank.receives, [&](Message* message) {
      uint32_t verdict = 1;
      const auto state = rank.core->test(message->receive, &verdict);
      if (state == TransferState::failed && !may_lose_) fault_ = "a receive failed";
      if (state == TransferState::done && message->received != message->data)
        fault_ = fmt::format("message {} of {} bytes came wrong", message->header.tag,
                             message->data.size());
      if (state == TransferState::done && verdict != (1 | message->header.verdict))
        fault_ = "a verdict came wrong";
      return state != TransferState::pending;
    });
    bool moved = rank.sends.size() + rank.receives.size() < before;
    int peer = -1;
    for (Bytes message; rank.core->take(peer, message); moved = true) {
      auto& expected = rank.controls[static_cast<size_t>(peer)];
      if (expected.empty() || expected.front() != message)
        fault_ = "a control message came wrong";
      else
        expected.pop_front();
    }
    while (const auto event = rank.core->take_event()) {
      moved = rank.is_gone[static_cast<size_t>(event->peer)] = true;
      // A rank that receives a goodbye ends the link without sending one.
      if (event->kind == PeerEvent::Kind::lost && !may_lose_ && !rank.is_leaving)
        fault_ = fmt::format("rank {} lost rank {}: {}", number, event->peer, event->detail);
    }
    return moved;
  }

  static bool is_over(const Rank& rank) {
    if (!rank.sends.empty() || !rank.receives.empty()) return false;
    for (size_t peer = 0; peer < rank.controls.size(); ++peer)
      if (!rank.controls[peer].empty() && !rank.is_gone[peer]) return false;
    return true;
  }

  std::string verdict() {
    for (int rank = 0; rank < size_; ++rank)
      if (at(rank).core) return "for ever asleep: " + state_of(rank);
    return "";
  }
  std::string state_of(int number) {
    const auto& rank = at(number);
    return fmt::format("rank {}{} with {} sends, {} receives, {} calls to come", number,
                       rank.is_leaving ? ", which leaves," : "", rank.sends.size(),
                       rank.receives.size(), rank.posts.size() + rank.control_posts.size());
  }

  const Conditions conditions_;
  Random world_, program_, schedule_, faults_;
  Events events_;
  const int size_;
  bool is_wide_ = true;  // no link needs an event for every few bytes
  SimNetwork network_;
  std::deque<Message> messages_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  bool may_lose_ = false;
  std::string fault_;
  uint64_t trace_ = 0;
  uint64_t count_ = 0;
};

// Runs seeds and prints the time of each.
void run_seeds(uint64_t first, uint64_t count, const Conditions& conditions,
               LinkCounters& counters) {
  const auto begin = Clock::now();
  uint64_t events = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    StreamWorld world(seed, conditions, counters);
    ASSERT_EQ(world.run(), "") << "seed " << seed;
    events += world.events();
    ASSERT_EQ(counters.written, counters.read + counters.lost) << "seed " << seed;
  }
  const double micros =
      std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / double(count);
  fmt::print("{:.0f} us a seed, {:.0f} events, {:.0f} bytes written\n", micros,
             double(events) / double(count), double(counters.written) / double(count));
}

TEST(SimStreams, EveryMessageComesWholeHoweverItIsSplit) {
  LinkCounters seen;
  run_seeds(0, kSeeds, {}, seen);
  EXPECT_GT(seen.single_writes, kSeeds);
  EXPECT_GT(seen.single_reads, kSeeds);
  EXPECT_GT(seen.short_writes, kSeeds);
  EXPECT_GT(seen.short_reads, kSeeds);
  EXPECT_GT(seen.full_writes, kSeeds);
  EXPECT_GT(seen.late, kSeeds);
  EXPECT_GT(seen.reader_wakes, kSeeds);
  EXPECT_GT(seen.writer_wakes, kSeeds);
  EXPECT_GT(seen.resets_by_closing, kSeeds / 1000);
}

TEST(SimStreams, FaultsLoseMessagesButChangeNone) {
  LinkCounters seen;
  run_seeds(0, kSeeds / 2, {.has_faults = true}, seen);
  // Each fault is in a fifth of the seeds, but some runs end before it.
  EXPECT_GT(seen.resets, kSeeds / 20);
  EXPECT_GT(seen.kills, kSeeds / 20);
  EXPECT_GT(seen.half_opens, kSeeds / 20);
  EXPECT_GT(seen.stalls, kSeeds / 20);
  EXPECT_GT(seen.slow_links, kSeeds / 20);
  EXPECT_GT(seen.ends, kSeeds / 20);
}

TEST(SimStreams, ARankThatIsNotWokenIsFound) {
  LinkCounters seen;
  int found = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    StreamWorld world(seed, {.deaf = 1}, seen);
    found += world.run().find("for ever asleep") != std::string::npos;
  }
  EXPECT_GT(found, 50);
}

TEST(SimStreams, OneSeedIsOneTrace) {
  LinkCounters seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    StreamWorld one(seed, {.has_faults = true}, seen), other(seed, {.has_faults = true}, seen);
    EXPECT_EQ(one.run(), other.run());
    EXPECT_EQ(one.trace(), other.trace()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tutti::simulation
