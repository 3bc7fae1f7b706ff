// After a loss the ranks agree through the store on who survives. The tests cover the rule itself,
// and ranks as threads whose deaths and failures the test writes.
#include "tutti/core/membership/survivors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/support/expect_error.h"
#include "tests/support/forwarding_store.h"
#include "tutti/backends/store.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ChooseMembers, WhoVotesGoesOn) {
  EXPECT_THAT(choose_members({{0, {2}}, {1, {2}}, {3, {2}}}, {}), ElementsAre(0, 1, 3));
}

TEST(ChooseMembers, TheDeadDoNotAndTheirVotesDoNotCount) {
  EXPECT_THAT(choose_members({{0, {}}, {1, {0}}, {2, {}}}, {1}), ElementsAre(0, 2));
}

TEST(ChooseMembers, WhomTheOthersGaveUpIsNoMemberThoughItSaysThatItLives) {
  EXPECT_THAT(choose_members({{0, {2}}, {1, {2}}, {2, {}}, {3, {2}}}, {}), ElementsAre(0, 1, 3));
}

TEST(ChooseMembers, WhoWasStoppedAndGivesUpAnotherTakesNoneAlong) {
  EXPECT_THAT(choose_members({{0, {2}}, {1, {2}}, {2, {0}}, {3, {2}}}, {}), ElementsAre(0, 1, 3));
}

TEST(ChooseMembers, OfTwoThatGaveUpEachOtherOneGoesOn) {
  EXPECT_THAT(choose_members({{0, {}}, {1, {2}}, {2, {1}}, {3, {}}}, {}), ElementsAre(0, 1, 3));
}

// Ranks of a broken communicator of four. The ranks in `lost` write nothing.
class AgreeTest : public testing::Test {
 protected:
  Survivors survivors(int own, std::set<int> given_up = {}, double settle = 5,
                      std::shared_ptr<Store> store = nullptr) {
    Survivors::Terms terms{.own = own, .launched = {}, .given_up = given_up, .settle = settle};
    for (int rank = 0; rank < 4; ++rank) terms.launched.push_back({.rank = rank});
    return {store ? store : store_, "job/0", 0, std::move(terms)};
  }
  void die(int rank) { append_death(*store_, {.who = {.rank = rank}, .signal = 9, .host = "h"}); }

  // Returns the survivors that each of these ranks finds; all ranks run at the same time.
  std::vector<std::vector<int>> agree(std::vector<Survivors*> ranks) {
    std::vector<std::future<std::vector<int>>> results;
    for (auto* rank : ranks)
      results.push_back(
          std::async(std::launch::async, [rank] { return rank->agree(Deadline::after(10)); }));
    std::vector<std::vector<int>> members;
    for (auto& result : results) members.push_back(result.get());
    return members;
  }

  const std::shared_ptr<Store> store_ = make_memory_store();
};

TEST_F(AgreeTest, ADeathThatALauncherSawIsNotWaitedFor) {
  die(2);
  auto zero = survivors(0), one = survivors(1), three = survivors(3);
  const auto begin = Clock::now();
  for (const auto& members : agree({&zero, &one, &three}))
    EXPECT_THAT(members, ElementsAre(0, 1, 3));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
}

TEST_F(AgreeTest, AFurtherDeathLeadsToTheNextEpochAnyNumberOfTimes) {
  die(2);
  auto zero = survivors(0), one = survivors(1), three = survivors(3);
  agree({&zero, &one, &three});
  // While these three connect, the last of them dies. It has rank 2 in the new communicator.
  die(3);
  const auto lost = Error(ErrorCode::peer_lost, "rank 2 was killed").with_rank(2);
  for (auto* rank : {&zero, &one}) rank->not_connected(lost);
  for (const auto& members : agree({&zero, &one})) EXPECT_THAT(members, ElementsAre(0, 1));
  EXPECT_EQ(zero.epoch(), 2);
  die(0);
  one.not_connected(Error(ErrorCode::peer_lost, "rank 0 was killed").with_rank(0));
  EXPECT_THAT(agree({&one}), ElementsAre(ElementsAre(1)));
}

TEST_F(AgreeTest, ARankThatWasStoppedAndWakesIsToldThatItIsNoMember) {
  auto zero = survivors(0, {2}), one = survivors(1, {2}), two = survivors(2),
       three = survivors(3, {2});
  agree({&zero, &one, &three});
  EXPECT_EQ(
      test::expect_error(ErrorCode::peer_silent, "rank 2 is not among the survivors (ranks 0 1 3)",
                         [&] { two.agree(Deadline::after(10)); })
          .rank(),
      2);
}

TEST_F(AgreeTest, ARankThatGaveItselfUpIsNotWaitedFor) {
  auto zero = survivors(0), one = survivors(1), two = survivors(2), three = survivors(3);
  agree({&zero, &one, &two, &three});
  const Error own = Error(ErrorCode::io, "rank 1: Too many open files").with_rank(1);
  for (auto* rank : {&zero, &two, &three})
    rank->not_connected(ToldError(own, 1, "attempt/failure"));
  EXPECT_THROW(one.not_connected(own), Error);
  const auto begin = Clock::now();
  for (const auto& members : agree({&zero, &two, &three}))
    EXPECT_THAT(members, ElementsAre(0, 2, 3));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
}

// The others have shrunk to ranks 0, 2 and 3, then to 0 and 3, while rank 2 was still in the first
// shrink. Rank 3 has rank 2 in the second communicator.
TEST_F(AgreeTest, ARankThatWakesTwoShrinksLaterReadsTheNumbersOfItsOwnCommunicator) {
  die(1);
  auto zero = survivors(0), two = survivors(2), three = survivors(3);
  for (const auto& members : agree({&zero, &two, &three}))
    EXPECT_THAT(members, ElementsAre(0, 2, 3));
  EXPECT_THAT(zero.first_ranks(), ElementsAre(0, 2, 3));
  const auto later = [&](int own) {
    Survivors::Terms terms{.own = own, .first_ranks = zero.first_ranks(), .given_up = {1}};
    for (const int rank : {0, 2, 3}) terms.launched.push_back({.rank = rank});
    return Survivors(store_, "job/0", 1, std::move(terms));
  };
  auto later_zero = later(0), later_three = later(2);
  for (const auto& members : agree({&later_zero, &later_three}))
    EXPECT_THAT(members, ElementsAre(0, 2));
  EXPECT_THAT(later_three.first_ranks(), ElementsAre(0, 3));
  test::expect_error(ErrorCode::peer_silent, "rank 2 is not among the survivors (ranks 0 3)",
                     [&] { two.agree(Deadline::after(10)); });
}

// Forgets every key as soon as it is written, as if the others had gone on and erased their keys.
class ForgetfulStore final : public test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void set(const std::string&, std::string_view) override {}
};

TEST_F(AgreeTest, ARankWhoseVoteIsForgottenDoesNotWaitForItself) {
  auto zero = survivors(0, {}, 5, std::make_shared<ForgetfulStore>(store_));
  test::expect_error(ErrorCode::timeout, "while ranks 1-3 did not say that they live",
                     [&] { zero.agree(Deadline::after(0.3)); });
}

// Rank 2 reports rank 1 as the cause. Rank 1 takes the reporter, rank 2, for the cause. Both live.
TEST_F(AgreeTest, WhoAccusesAnotherHasNotGivenItselfUp) {
  auto zero = survivors(0), one = survivors(1), two = survivors(2), three = survivors(3);
  agree({&zero, &one, &two, &three});
  const auto epoch = make_prefix_store(store_, "a/");
  const auto late = Error(ErrorCode::timeout, "nothing came from rank 1").with_rank(1);
  EXPECT_THROW(ToldFailure(*epoch, "attempt", 2, 4).fail(late), Error);
  for (auto* rank : {&zero, &one, &three}) {
    try {
      ToldFailure(*epoch, "attempt", rank == &zero ? 0 : rank == &one ? 1 : 3, 4).look();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.rank(), rank == &one ? 2 : 1);
      rank->not_connected(error);
    }
  }
  two.not_connected(late);
  for (const auto& members : agree({&zero, &one, &two, &three}))
    EXPECT_THAT(members, ElementsAre(0, 1, 2, 3));
}

// The rank is named by its number among the candidates, not by that of the first communicator.
TEST_F(AgreeTest, AfterALossARankThatGaveItselfUpIsKnownByItsNewNumber) {
  die(0);
  auto one = survivors(1), two = survivors(2), three = survivors(3);
  agree({&one, &two, &three});
  const Error own = Error(ErrorCode::io, "rank 1: Too many open files").with_rank(1);
  for (auto* rank : {&one, &three}) rank->not_connected(ToldError(own, 1, "attempt/failure"));
  EXPECT_THROW(two.not_connected(own), Error);
  auto given_up = std::async(std::launch::async, [&] { return two.agree(Deadline::after(10)); });
  for (const auto& members : agree({&one, &three})) EXPECT_THAT(members, ElementsAre(1, 3));
  EXPECT_THROW(given_up.get(), Error);
}

// The same holds if no call of the store may outlast the deadline, as in shrink().
TEST_F(AgreeTest, TheDeadlineNamesTheMissingRanks) {
  TcpStoreServer server("127.0.0.1", 0, "a secret");
  const auto remote =
      connect_tcp_store("127.0.0.1", server.port(), "a secret", Deadline::after(10));
  for (const auto& store : {store_, remote}) {
    const auto deadline = Deadline::after(0.3);
    auto zero = survivors(0, {}, 5, bounded(store, deadline));
    EXPECT_EQ(test::expect_error(ErrorCode::timeout, "while ranks 1-3 did not say that they live",
                                 [&] { zero.agree(deadline); })
                  .rank(),
              1);
  }
}

// Of two deaths that are written at the same time, the later one may be written and counted first.
TEST(DeathLog, ADeathThatIsCountedBeforeItIsWrittenIsReadLater) {
  const auto store = make_memory_store();
  DeathLog log(store);
  store->set("deaths/count", "1");
  EXPECT_TRUE(log.look().empty());
  append_death(*store, {.who = {.rank = 3}, .pid = 17, .signal = 9, .host = "a"});
  EXPECT_EQ(log.look().size(), 1u);
}

TEST(FirstError, StaysTheOneThatWasWrittenFirst) {
  const auto store = make_memory_store();
  EXPECT_FALSE(read_first_error(*store));
  write_first_error(*store, {.rank = 2, .incarnation = 1});
  write_first_error(*store, {.rank = 0});
  EXPECT_EQ(read_first_error(*store), (LaunchedRank{.rank = 2, .incarnation = 1}));
  const auto foreign = make_memory_store();
  foreign->set("deaths/first_error", "a rank, they say");
  EXPECT_FALSE(read_first_error(*foreign));
  DeathLog deaths(store);
  EXPECT_TRUE(deaths.look().empty());  // an error does not mean that its rank died
}

TEST(DeathLog, KeepsTheOrderAndTellsIncarnationsApart) {
  const auto store = make_memory_store();
  DeathLog log(store);
  EXPECT_TRUE(log.look().empty());
  append_death(*store, {.who = {.rank = 3}, .pid = 17, .signal = 9, .host = "a"});
  append_death(*store, {.who = {.rank = 1, .incarnation = 2}, .pid = 18, .code = 4, .host = "b"});
  const auto& deaths = log.look();
  ASSERT_EQ(deaths.size(), 2u);
  EXPECT_EQ(deaths[0].who, (LaunchedRank{3, 0}));
  EXPECT_EQ(describe_death(deaths[0]), "was killed by signal 9 (Killed)");
  EXPECT_EQ(deaths[1].who, (LaunchedRank{1, 2}));
  EXPECT_EQ(describe_death(deaths[1]), "exited with code 4");
}

}  // namespace
}  // namespace tutti
