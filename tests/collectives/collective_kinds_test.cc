#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "tutti/collectives/collective.h"
#include "tutti/collectives/schedule.h"

namespace tutti {
namespace {

// Returns the names of the kinds for which `holds` is true, in the order of their numbers.
template <class Predicate>
std::string names_where(Predicate holds) {
  std::string names;
  for (const auto& row : kKindTraits)
    if (holds(row.kind)) names += (names.empty() ? "" : " ") + std::string(row.name);
  return names;
}

TEST(CollectiveKinds, EachHasARowUnderItsNumberAndAName) {
  std::set<std::string_view> names;
  for (int number = 0; number < kCollectiveKindCount; ++number) {
    const auto kind = static_cast<CollectiveKind>(number);
    EXPECT_EQ(traits(kind).kind, kind);
    EXPECT_TRUE(names.insert(to_string(kind)).second) << to_string(kind);
  }
  // Ranks send these numbers to each other, and users write the names into settings.
  EXPECT_EQ(names_where([](CollectiveKind) { return true; }),
            "allreduce allgather broadcast reduce gather scatter reduce_scatter alltoall send recv "
            "barrier");
}

TEST(CollectiveKinds, AnOpCountsWhereElementsAreReduced) {
  EXPECT_EQ(names_where(reduces), "allreduce reduce reduce_scatter");
}

TEST(CollectiveKinds, ARootCountsWhereOneRankAloneGivesOrGets) {
  EXPECT_EQ(names_where(has_root), "broadcast reduce gather scatter");
  EXPECT_EQ(names_where([](CollectiveKind kind) { return traits(kind).from_root; }),
            "broadcast scatter");
  EXPECT_EQ(names_where([](CollectiveKind kind) { return traits(kind).to_root; }), "reduce gather");
  EXPECT_EQ(names_where(is_described_by_root), "scatter");
}

TEST(CollectiveKinds, RowsBelongToRanksInFiveKinds) {
  EXPECT_EQ(names_where(joins_parts), "allgather gather");
  EXPECT_EQ(names_where(deals_parts), "scatter reduce_scatter");
  EXPECT_EQ(names_where(exchanges_parts), "alltoall");
  EXPECT_EQ(names_where(has_rows), "allgather gather scatter reduce_scatter alltoall");
  EXPECT_EQ(names_where(is_elementwise), "allreduce broadcast reduce");
}

TEST(CollectiveKinds, TwoRanksAloneSendAndReceive) { EXPECT_EQ(names_where(is_pair), "send recv"); }

TEST(CollectiveKinds, SomeShareBucketsAndOneTakesZerosOfRanksThatHaveJoined) {
  EXPECT_EQ(names_where([](CollectiveKind kind) { return traits(kind).may_fuse; }),
            "allreduce allgather reduce_scatter");
  EXPECT_EQ(names_where([](CollectiveKind kind) { return traits(kind).joined_give_zeros; }),
            "allreduce");
}

TEST(CollectiveKinds, PlansRepeatAllThatAllRanksTakePartIn) {
  const auto is = [](MayReplay may) {
    return [may](CollectiveKind kind) { return traits(kind).may_replay == may; };
  };
  EXPECT_EQ(names_where(is(MayReplay::everywhere)), "allreduce");
  EXPECT_EQ(names_where(is(MayReplay::on_host)),
            "allgather broadcast reduce gather scatter reduce_scatter alltoall barrier");
  EXPECT_EQ(names_where(is(MayReplay::never)), "send recv");
}

// A backend's device serves lists of kinds. A barrier has no memory that could be on a device.
TEST(CollectiveKinds, AllButABarrierMoveOrReduce) {
  std::set<CollectiveKind> kinds{CollectiveKind::barrier};
  for (const auto kind : reducing_kinds()) EXPECT_TRUE(kinds.insert(kind).second);
  for (const auto kind : moving_kinds()) EXPECT_TRUE(kinds.insert(kind).second);
  EXPECT_EQ(static_cast<int>(kinds.size()), kCollectiveKindCount);
  for (const auto kind : reducing_kinds()) EXPECT_TRUE(reduces(kind));
}

// The numbers of elements that rank 1 of three gives and gets if the root is rank 1, and if it is
// rank 2.
TEST(CollectiveKinds, CountsOfInputsAndOutputs) {
  using enum CollectiveKind;
  const int64_t one[] = {5}, parts[] = {1, 2, 4}, received[] = {8, 2, 16};
  using Counts = std::pair<int64_t, int64_t>;
  const auto counts_of = [&](CollectiveKind kind, std::span<const int64_t> counts, int root) {
    Problem problem;
    problem.kind = kind;
    problem.rank = 1;
    problem.size = 3;
    problem.root = root;
    problem.counts = counts;
    if (kind == alltoall) problem.recv_counts = received;
    if (!is_pair(kind) || root != 1) require_valid(problem);
    return Counts(input_count(problem), output_count(problem));
  };
  for (const int root : {1, 2}) {
    const bool is_root = root == 1;
    EXPECT_EQ(counts_of(allreduce, one, root), Counts(5, 5));
    EXPECT_EQ(counts_of(broadcast, one, root), Counts(is_root ? 5 : 0, 5));
    EXPECT_EQ(counts_of(reduce, one, root), Counts(5, is_root ? 5 : 0));
    EXPECT_EQ(counts_of(allgather, parts, root), Counts(2, 7));
    EXPECT_EQ(counts_of(gather, parts, root), Counts(2, is_root ? 7 : 0));
    EXPECT_EQ(counts_of(scatter, parts, root), Counts(is_root ? 7 : 0, 2));
    EXPECT_EQ(counts_of(reduce_scatter, parts, root), Counts(7, 2));
    EXPECT_EQ(counts_of(alltoall, parts, root), Counts(7, 26));
    EXPECT_EQ(counts_of(send, one, root), Counts(5, 0));
    EXPECT_EQ(counts_of(recv, one, root), Counts(0, 5));
    EXPECT_EQ(counts_of(barrier, {}, root), Counts(0, 0));
  }
}

}  // namespace
}  // namespace tutti
