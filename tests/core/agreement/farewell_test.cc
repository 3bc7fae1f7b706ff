#include "tutti/core/agreement/farewell.h"

#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/core/scheduling/prepared_pairs.h"

namespace tutti {
namespace {

Farewell a_farewell() {
  Farewell farewell;
  farewell.next_tag = 10;
  farewell.unfinished = {7, 9};
  farewell.plan = 3;
  farewell.next_sequence = 100;
  farewell.unfinished_buckets = {98};
  farewell.blocking_done = 5;
  farewell.joins = 2;
  farewell.pairs = {4, 10, 6, 0};
  farewell.cause = 1;
  farewell.error = "ValueError: sample 17";
  return farewell;
}

TEST(Farewell, SaysWhatItsRankFinished) {
  const auto farewell = a_farewell();
  EXPECT_TRUE(farewell.has_finished(6));
  EXPECT_FALSE(farewell.has_finished(7));
  EXPECT_TRUE(farewell.has_finished(8));
  EXPECT_FALSE(farewell.has_finished(10));
  EXPECT_TRUE(farewell.has_finished_blocking(5));
  EXPECT_FALSE(farewell.has_finished_blocking(6));
}

TEST(Farewell, OfEarlierPlansEverythingOfLaterOnesNothing) {
  const auto farewell = a_farewell();
  EXPECT_TRUE(farewell.has_finished_bucket(2, 1000));
  EXPECT_TRUE(farewell.has_finished_bucket(3, 99));
  EXPECT_FALSE(farewell.has_finished_bucket(3, 98));
  EXPECT_FALSE(farewell.has_finished_bucket(3, 100));
  EXPECT_FALSE(farewell.has_finished_bucket(4, 0));
}

// A rank that joins leaves its prepared pairs. A use that still runs then is never finished by that
// rank.
TEST(Farewell, AUseThatRunsWhereItsPairWasLeftIsNotFinished) {
  PreparedPair pair("x", 4, {});
  EXPECT_TRUE(pair.peer_finished(9, a_farewell()));
  EXPECT_FALSE(pair.peer_finished(10, a_farewell()));
  pair.on_left(11);
  EXPECT_FALSE(pair.peer_finished(10, a_farewell()));
  PreparedPair other("y", 7, {});
  EXPECT_FALSE(other.peer_finished(0, a_farewell())) << "it has not begun there";
  other.on_left(11);  // the pair has ended on the other rank
  EXPECT_TRUE(other.peer_finished(10, a_farewell()));
  EXPECT_FALSE(other.peer_finished(11, a_farewell()));
}

TEST(Farewell, OfItsPairsWhatItHasFinished) {
  const auto farewell = a_farewell();
  EXPECT_EQ(farewell.uses_of(4), 10u);
  EXPECT_EQ(farewell.uses_of(6), 0u);
  EXPECT_FALSE(farewell.uses_of(10));  // 10 is a count of uses, not the id of a pair
}

TEST(Farewell, OneThatSaysNothingPromisesNothing) {
  const Farewell farewell;
  EXPECT_FALSE(farewell.has_finished(0));
  EXPECT_FALSE(farewell.has_finished_bucket(1, 0));
  EXPECT_FALSE(farewell.has_finished_blocking(1));
  EXPECT_FALSE(farewell.uses_of(0));
}

TEST(Farewell, TheFirstRankThatLeftIsNamed) {
  Farewell farewell;
  EXPECT_EQ(farewell.first_to_leave(2, 0, 4), 2);  // rank 2 left of its own accord
  farewell.cause = 1;
  EXPECT_EQ(farewell.first_to_leave(2, 0, 4), 1);
  EXPECT_EQ(farewell.first_to_leave(2, 1, 4), 2);  // rank 1, which asks, did not leave
  farewell.cause = 4;                              // not a rank
  EXPECT_EQ(farewell.first_to_leave(2, 0, 4), 2);
}

TEST(Farewell, ComesAsItWasSent) {
  WireWriter writer;
  encode(writer, a_farewell());
  WireReader reader(writer.bytes());
  const auto farewell = decode_farewell(reader);
  EXPECT_TRUE(reader.at_end());
  EXPECT_FALSE(farewell.has_finished(9));
  EXPECT_TRUE(farewell.has_finished(8));
  EXPECT_FALSE(farewell.has_finished_bucket(3, 98));
  EXPECT_EQ(farewell.blocking_done, 5u);
  EXPECT_EQ(farewell.joins, 2u);
  EXPECT_EQ(farewell.error, "ValueError: sample 17");
  EXPECT_EQ(farewell.uses_of(4), 10u);
  EXPECT_EQ(farewell.cause, 1);
  WireReader cut(writer.bytes().first(writer.size() - 1));
  EXPECT_THROW(decode_farewell(cut), Error);
}

}  // namespace
}  // namespace tutti
