// The ranks make the first communicator of a job in attempts. An attempt succeeds or fails on all
// ranks. After a failure, whoever caused it, all ranks meet again in the next attempt.
#include "tutti/core/meeting/attempt.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <future>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/forwarding_store.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

struct Result {
  std::unique_ptr<Communicator> comm;
  ErrorCode code{};
  int rank = -1;
  std::string text;
};

Result create(const Options& options) {
  try {
    return {.comm = Communicator::create(options), .text = {}};
  } catch (const Error& error) {
    return {.comm = nullptr, .code = error.code(), .rank = error.rank(), .text = error.what()};
  }
}

class AttemptTest : public testing::Test {
 protected:
  std::future<Result> start(const Options& options) {
    return std::async(std::launch::async, [options] { return create(options); });
  }
  Options rank(int number, int size, double patience = 20) {
    auto options = Options::thread_rank(number, size, store_);
    options.connect_timeout = patience;
    options.backend = "tcp";
    return options;
  }
  void expect_sum(std::vector<std::unique_ptr<Communicator>> comms) {
    std::vector<std::thread> threads;
    for (auto& comm : comms)
      threads.emplace_back([&comm, size = comms.size()] {
        std::vector<float> one{1};
        comm->allreduce("x", one, ReduceOp::sum).wait();
        EXPECT_EQ(one[0], static_cast<float>(size));
        EXPECT_EQ(comm->size(), static_cast<int>(size));
        comm.reset();
      });
    for (auto& thread : threads) thread.join();
  }

  // Calls create() on one thread for each of these ranks. All must meet and work.
  void expect_meeting(const std::vector<Options>& ranks) {
    std::vector<std::future<Result>> calls;
    for (const auto& options : ranks) calls.push_back(start(options));
    std::vector<std::unique_ptr<Communicator>> all;
    for (auto& call : calls) {
      auto made = call.get();
      ASSERT_TRUE(made.comm) << made.text;
      all.push_back(std::move(made.comm));
    }
    expect_sum(std::move(all));
  }

  const std::shared_ptr<Store> store_ = make_memory_store();
};

TEST_F(AttemptTest, AfterATimeoutOnOneSideTheNextCallMeets) {
  const auto early = create(rank(0, 2, 0.3));
  EXPECT_EQ(early.code, ErrorCode::timeout);
  EXPECT_EQ(early.rank, 1);
  auto zero = start(rank(0, 2)), one = start(rank(1, 2));
  std::vector<std::unique_ptr<Communicator>> both;
  for (auto* result : {&zero, &one}) {
    auto made = result->get();
    ASSERT_TRUE(made.comm) << made.text;
    both.push_back(std::move(made.comm));
  }
  expect_sum(std::move(both));
}

TEST_F(AttemptTest, WhatOneRankLacksAllHearAndTheNextCallMeets) {
  auto bad = rank(1, 3);
  bad.network_interface = "eth99";
  auto zero = start(rank(0, 3)), two = start(rank(2, 3));
  const auto own = create(bad);
  EXPECT_THAT(own.text, testing::StartsWith("TUTTI_INTERFACE=eth99 names no interface"));
  for (auto* result : {&zero, &two}) {
    const auto heard = result->get();
    EXPECT_EQ(heard.text, "rank 1: " + own.text);
    EXPECT_EQ(heard.rank, 1);
  }
  expect_meeting({rank(0, 3), rank(1, 3), rank(2, 3)});
}

// The launcher reported that rank 1 died before it came. A process that comes late gets the same
// error, once.
TEST_F(AttemptTest, ADeathIsNamedToEachSurvivorOnceAndAReplacementMeetsThem) {
  auto zero = start(rank(0, 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  append_death(*store_, {.who = {.rank = 1}, .pid = 4711, .signal = 9, .host = "somewhere"});
  for (const auto& heard : {zero.get(), create(rank(2, 3))}) {
    EXPECT_EQ(heard.code, ErrorCode::peer_lost);
    EXPECT_EQ(heard.rank, 1);
    EXPECT_THAT(heard.text, AllOf(HasSubstr("rank 1 (host somewhere, pid 4711) was killed by "
                                            "signal 9 (Killed) while the ranks were connecting"),
                                  HasSubstr("while the ranks were connecting. Make a new "
                                            "Communicator to go on with 2 ranks")));
  }
  auto replacement = rank(1, 3);
  replacement.incarnation = 1;
  expect_meeting({rank(0, 3), replacement, rank(2, 3)});
}

TEST_F(AttemptTest, TheDeathThatCameFirstIsBlamed) {
  auto zero = start(rank(0, 4));
  // Rank 2 ended because rank 1 was killed. Its own end is in the log too.
  append_death(*store_, {.who = {.rank = 1}, .pid = 1, .signal = 9, .host = "h"});
  append_death(*store_, {.who = {.rank = 2}, .pid = 2, .code = 1, .host = "h"});
  EXPECT_EQ(zero.get().rank, 1);
}

// Shows the place records to the ranks only after further deaths are in the log.
class DeadlyStore final : public test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  std::optional<std::string> try_get(const std::string& key) override {
    if (key.ends_with(Attempt::place_key(1)))
      for (int i = 0; i < 20; ++i)
        append_death(rest(), {.who = {.rank = 2}, .pid = 2, .code = 1, .host = "h"});
    return ForwardingStore::try_get(key);
  }
};

TEST_F(AttemptTest, ADeathIsToldAsItWasThoughOthersDieMeanwhile) {
  append_death(*store_, {.who = {.rank = 1}, .pid = 4711, .signal = 9, .host = "somewhere"});
  Membership membership;
  membership.root = std::make_shared<DeadlyStore>(store_);
  membership.path = "job/0";
  const auto attempt = Attempt::begin(rank(0, 3), membership);
  const auto error =
      error_of([&] { attempt->fail(Error(ErrorCode::timeout, "rank 1 is late").with_rank(1)); });
  EXPECT_EQ(error.rank(), 1);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 (host somewhere, pid 4711) was killed by signal 9"));
}

// A timeout may also be the reason why the parent communicator ended.
TEST_F(AttemptTest, ATimeoutOfTheParentIsNoLateRank) {
  Membership membership;
  membership.root = store_;
  membership.path = "job/part";
  membership.members = {{.rank = 0}, {.rank = 1}};
  membership.deadline = Deadline::after(20);
  membership.parents_end = [] {
    return std::optional(Error(ErrorCode::timeout, "\"x\" took too long").with_rank(1));
  };
  const auto error = error_of([&] { Attempt::begin(rank(0, 2), membership)->meet(); });
  EXPECT_STREQ(error.what(), "\"x\" took too long");
  EXPECT_EQ(error.rank(), 1);
}

// Rank 1 leaves its place record, reports that it is connected, and dies before it is counted.
TEST_F(AttemptTest, ARankThatDiedBeforeItWasCountedIsNotWaitedForInVain) {
  Membership membership;
  membership.root = store_;
  membership.path = "job/part";
  membership.members = {{.rank = 0}, {.rank = 1}};
  membership.deadline = Deadline::after(0.3);
  membership.own.place.host = "h";
  membership.own.place.pid = membership.own.place.world_rank = 0;
  auto other = membership.own;
  other.place.world_rank = 1;
  store_->set("job/part/" + Attempt::place_key(1), encode_place(other));
  store_->set("job/part/connected/1", "yes");
  const auto attempt = Attempt::begin(rank(0, 2), membership);
  const auto places = attempt->meet();
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[1].world_rank, 1);
  attempt->all_connected();
}

// An attempt of ranks 0 and 1 to make a part. Only rank 0 runs; rank 1 is a record in the store.
class ForgottenAttemptTest : public AttemptTest {
 protected:
  ForgottenAttemptTest() {
    membership_.root = store_;
    membership_.path = "job/part";
    membership_.members = {{.rank = 0}, {.rank = 1}};
    membership_.deadline = Deadline::after(0.4);
    membership_.own = place_of(0);
  }
  static PlaceRecord place_of(int rank) {
    PlaceRecord record;
    record.place.host = "h";
    record.place.pid = 0;
    record.place.world_rank = rank;
    return record;
  }
  // The other ranks have gone on and erased their keys.
  void forget() { store_->erase_all("job/part/"); }
  void forget_once_there(const std::string& key) {
    while (!store_->try_get("job/part/" + key)) std::this_thread::yield();
    forget();
  }
  static void expect_forgotten(std::future<void> attempt) {
    try {
      attempt.get();
      FAIL() << "no error";
    } catch (const ForgottenAttempt& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_silent);
      EXPECT_EQ(error.rank(), 0);
      EXPECT_THAT(error.what(), HasSubstr("rank 0 finds that the others have left the attempt"));
    } catch (const Error& error) {
      FAIL() << error.what();
    }
  }
  void come_as_rank_one() {
    store_->set("job/part/" + Attempt::place_key(1), encode_place(place_of(1)));
    store_->add("job/part/places", 1);
  }

  Membership membership_;
};

TEST_F(ForgottenAttemptTest, WhileItMeets) {
  const auto attempt = Attempt::begin(rank(0, 2), membership_);
  auto meeting = std::async(std::launch::async, [&] { attempt->meet(); });
  forget_once_there("places");
  expect_forgotten(std::move(meeting));
}

TEST_F(ForgottenAttemptTest, WhileItWaitsUntilAllAreConnected) {
  come_as_rank_one();
  const auto attempt = Attempt::begin(rank(0, 2), membership_);
  attempt->meet();
  auto connecting = std::async(std::launch::async, [&] { attempt->all_connected(); });
  forget_once_there("connected");
  expect_forgotten(std::move(connecting));
}

// A backend waits for a key of the other rank, which has been erased. Its error may name that rank
// or none. No failure is published in the store.
TEST_F(ForgottenAttemptTest, WhileItConnects) {
  for (const int named : {1, -1}) {
    membership_.deadline = Deadline::after(0.4);
    come_as_rank_one();
    const auto attempt = Attempt::begin(rank(0, 2), membership_);
    attempt->meet();
    forget();
    auto failing = std::async(std::launch::async, [&] {
      try {
        attempt->store()->get("address/1", membership_.deadline);
      } catch (const Error& error) {
        attempt->fail(Error(error).with_rank(named));
      }
    });
    expect_forgotten(std::move(failing));
    EXPECT_FALSE(store_->try_get("job/part/attempt/failure"));
  }
}

// A key does not come because its rank died. No rank has reported that death yet.
TEST_F(AttemptTest, ADeathIsTheCauseOfAWaitThatNamesNoRank) {
  Membership membership;
  membership.root = store_;
  membership.path = "job/0";
  membership.deadline = Deadline::after(0);
  store_->set("job/0/" + Attempt::place_key(0), "a place");
  append_death(*store_, {.who = {.rank = 1}, .pid = 4711, .signal = 9, .host = "somewhere"});
  const auto attempt = Attempt::begin(rank(0, 3), membership);
  const auto error = error_of(
      [&] { attempt->fail(Error(ErrorCode::timeout, "no rank set a key before the deadline")); });
  EXPECT_EQ(error.rank(), 1);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 (host somewhere, pid 4711) was killed"));
}

// Rank 1 was counted, but its place record was erased before this rank came.
TEST_F(ForgottenAttemptTest, BeforeItGathersThePlaces) {
  store_->add("job/part/places", 1);
  const auto attempt = Attempt::begin(rank(0, 2), membership_);
  expect_forgotten(std::async(std::launch::async, [&] { attempt->meet(); }));
}

TEST_F(AttemptTest, WhoIsMissingIsSaidAfterAWhile) {
  auto options = rank(0, 3, 6.5);
  std::vector<std::string> lines;
  options.log = [&](LogLevel, std::string_view line) { lines.emplace_back(line); };
  create(options);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], testing::MatchesRegex(
                            "1 of 3 ranks have started after [56] s; ranks 1 2 are missing"));
}

// The test runs in its own process. From the moment when all ranks are known, that process may use
// little more memory.
TEST(OwnLimits, AThreadThatCannotStartIsAnErrorThatNamesTheLimit) {
  const pid_t child = ::fork();
  if (child == 0) {
    pthread_attr_t large;
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, size_t{1} << 30);
    pthread_setattr_default_np(&large);
    auto options = Options::thread_rank(0, 1, make_memory_store());
    options.observer = [](std::string_view point) {
      if (point != "rendezvous") return;
      rlim_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (512 << 20);
      const rlimit limit{bytes, bytes};
      ::setrlimit(RLIMIT_AS, &limit);
    };
    try {
      Communicator::create(options);
      ::_exit(1);
    } catch (const Error& error) {
      const auto text = std::string(error.what());
      std::fprintf(stderr, "%s\n", error.what());
      const bool says_it = text.find("(ulimit -u)") != text.npos &&
                           text.find("(ulimit -v)") != text.npos && error.rank() == 0;
      ::_exit(error.code() == ErrorCode::io && says_it ? 0 : 2);
    } catch (...) {
      ::_exit(3);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
#ifndef __SANITIZE_THREAD__
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: no error, 2: another one, 3: no tutti::Error";
#endif
}

// The failure that was published first counts for all ranks, whatever they saw themselves.
TEST(ToldFailure, TheFirstWordCounts) {
  const auto store = make_memory_store();
  const ToldFailure zero(*store, "x", 0, 3), one(*store, "x", 1, 3), two(*store, "x", 2, 3);
  EXPECT_FALSE(zero.look());
  const auto killed = Error(ErrorCode::peer_lost, "rank 1 was killed").with_rank(1);
  EXPECT_THROW(zero.fail(killed), Error);
  try {
    two.fail(Error(ErrorCode::peer_lost, "rank 0 ended").with_rank(0));
    FAIL() << "no error";
  } catch (const ToldError& error) {
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(error.teller(), 0);
    EXPECT_STREQ(error.what(), "rank 1 was killed");
  }
  // A rank reports its own failure to its caller itself.
  EXPECT_STREQ(error_of([&] { one.fail(Error(ErrorCode::io, "no files left")); }).what(),
               "no files left");
  EXPECT_THROW(one.succeed(), ToldError);
}

TEST(ToldFailure, AfterSuccessNoRankCanFailIt) {
  const auto store = make_memory_store();
  const ToldFailure zero(*store, "x", 0, 2), one(*store, "x", 1, 2);
  zero.succeed();
  one.fail(Error(ErrorCode::timeout, "rank 1 waited too long"));
  EXPECT_TRUE(one.look());
}

// A communicator ends because of a rank that is not a member of the part that connects.
TEST(ToldFailure, ACauseFromOutsideIsNoRankOfThese) {
  const auto store = make_memory_store();
  const ToldFailure zero(*store, "x", 0, 2), one(*store, "x", 1, 2);
  EXPECT_THROW(zero.fail_from_outside(Error(ErrorCode::peer_lost, "rank 0 is lost")), Error);
  try {
    one.look();
    FAIL() << "no error";
  } catch (const ToldError& error) {
    EXPECT_EQ(error.rank(), -1);
    EXPECT_EQ(error.teller(), 0);
    EXPECT_STREQ(error.what(), "rank 0 is lost");
  }
}

TEST(ToldFailure, GarbageIsNoFailureOfARank) {
  const auto store = make_memory_store();
  for (const auto* text : {"", "1", "9 0 4 x", "0 0 99 x", "a b c d"}) {
    store->set("x/failure", text);
    const auto error = error_of([&] { ToldFailure(*store, "x", 0, 2).look(); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << text;
    EXPECT_EQ(error.what(), fmt::format("the store's key x/failure holds \"{}\", which no rank "
                                        "writes",
                                        text));
  }
}

}  // namespace
}  // namespace tutti
