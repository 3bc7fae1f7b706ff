// Operations of every kind write into the caller's memory. Blocking calls are matched by order
// where memory is shared; elsewhere, and if they do not block, calls are matched by name.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <vector>

#include "tests/support/bulk.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace tutti {
namespace {

using Values = std::vector<double>;

// Returns the value that rank `from` gives at index `at`. The values repeat with the period
// kPeriod, and sums of them are exact.
constexpr int64_t kPeriod = 997;
double given(int from, int64_t at) { return static_cast<double>(from * 1000 + at % kPeriod); }

TensorView view(Values& values) {
  return {values.data(), Shape{static_cast<int64_t>(values.size())}, DataType::f64};
}

// The tensors of one kind on one rank, and the expected result.
struct Problem {
  Values input, output, expected;
};

// Appends `count` values with the period kPeriod; value i of the period is at(i).
template <class At>
void append(Values& values, int64_t count, At&& at) {
  Values cycle;
  for (int64_t i = 0; i < std::min(count, kPeriod); ++i) cycle.push_back(at(i));
  const size_t before = values.size();
  values.resize(before + static_cast<size_t>(count));
  test::fill_cycle(std::span(values).subspan(before), cycle);
}
template <class At>
Values numbers(int64_t count, At&& at) {
  Values values;
  append(values, count, at);
  return values;
}

// Returns `count` rows for each rank if is_even, else row counts that differ, some of them 0.
std::vector<int64_t> rows_of_ranks(int size, int64_t count, bool is_even) {
  std::vector<int64_t> rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(is_even ? count : count * rank / 2);
  return rows;
}

int64_t before(const std::vector<int64_t>& rows, int rank) {
  return std::accumulate(rows.begin(), rows.begin() + rank, int64_t{0});
}

enum class Way { blocking, named };
constexpr int64_t kCounts[] = {0, 1, 11, 500, 3000, 40'000, 100'001};

void every_kind(Communicator& comm, Way way) {
  const int rank = comm.rank(), size = comm.size();
  const bool blocks = way == Way::blocking;
  for (const int64_t count : kCounts)
    for (const bool is_even : {true, false}) {
      const auto rows = rows_of_ranks(size, count, is_even);
      const std::span<const int64_t> told = is_even ? std::span<const int64_t>() : rows;
      const int64_t all = before(rows, size), own = rows[static_cast<size_t>(rank)];
      const int root = static_cast<int>(count) % size;
      const bool is_root = rank == root;
      const auto check = [&](const char* what, const Values& got, const Values& wanted) {
        EXPECT_TRUE(test::same(got, wanted)) << what << " of " << count << " on rank " << rank;
      };
      auto mine = numbers(own, [&](int64_t i) { return given(rank, i); });
      Values joined, part(static_cast<size_t>(own), -1.0), whole(static_cast<size_t>(all), -1.0);
      for (int from = 0; from < size; ++from)
        append(joined, rows[static_cast<size_t>(from)], [&](int64_t i) { return given(from, i); });

      if (blocks)
        comm.allgather_blocking("allgather", view(mine), view(whole), told);
      else
        comm.allgather("allgather", view(mine), view(whole)).wait();
      check("allgather", whole, joined);
      // In place.
      std::fill(whole.begin(), whole.end(), -1.0);
      std::copy(mine.begin(), mine.end(), whole.begin() + before(rows, rank));
      TensorView in_place(whole.data() + before(rows, rank), Shape{own}, DataType::f64);
      if (blocks)
        comm.allgather_blocking("allgather", in_place, view(whole), told);
      else
        comm.allgather("allgather", in_place, view(whole)).wait();
      check("allgather in place", whole, joined);

      std::fill(whole.begin(), whole.end(), -1.0);
      if (blocks)
        comm.gather_blocking("gather", view(mine), view(whole), root, told);
      else
        comm.gather("gather", view(mine), view(whole), root).wait();
      check("gather", whole, is_root ? joined : Values(static_cast<size_t>(all), -1.0));

      auto dealt = numbers(is_root ? all : 0, [&](int64_t i) { return given(root, i); });
      if (blocks)
        comm.scatter_blocking("scatter", view(dealt), view(part), root, told);
      else
        comm.scatter("scatter", view(dealt), view(part), root, told).wait();
      check("scatter", part,
            numbers(own, [&](int64_t i) { return given(root, before(rows, rank) + i); }));

      auto addends = numbers(all, [&](int64_t i) { return given(rank, i); });
      if (blocks)
        comm.reduce_scatter_blocking("reduce_scatter", view(addends), view(part), ReduceOp::sum,
                                     told);
      else
        comm.reduce_scatter("reduce_scatter", view(addends), view(part), {.op = ReduceOp::sum},
                            told)
            .wait();
      check("reduce_scatter", part, numbers(own, [&](int64_t i) {
              double sum = 0;
              for (int from = 0; from < size; ++from) sum += given(from, before(rows, rank) + i);
              return sum;
            }));
      if (!is_even) continue;

      auto sent = numbers(count * size, [&](int64_t i) { return given(rank, i); });
      Values came(sent.size(), -1.0);
      if (blocks)
        comm.alltoall_blocking("alltoall", view(sent), view(came));
      else
        comm.alltoall("alltoall", view(sent), view(came), {}).wait();
      Values dealt_to_me;
      for (int from = 0; from < size; ++from)
        append(dealt_to_me, count, [&](int64_t i) { return given(from, rank * count + i); });
      check("alltoall", came, dealt_to_me);
      if (!blocks) continue;

      Values sum(static_cast<size_t>(count), -1.0);
      auto own_values = numbers(count, [&](int64_t i) { return given(rank, i); });
      comm.reduce_blocking("reduce", view(own_values), view(sum), root);
      check("reduce", sum, numbers(count, [&](int64_t i) {
              double total = 0;
              for (int from = 0; from < size; ++from) total += given(from, i);
              return is_root ? total : -1.0;
            }));
      comm.broadcast_blocking("broadcast", view(own_values), root);
      check("broadcast", own_values, numbers(count, [&](int64_t i) { return given(root, i); }));
      comm.barrier_blocking();
    }
}

void every_kind_blocking(Communicator& comm) { every_kind(comm, Way::blocking); }
void every_kind_by_name(Communicator& comm) { every_kind(comm, Way::named); }

void over_tcp(Options& options) { options.backend = "tcp"; }

TEST(BlockingKinds, OverThreads) {
  for (const int size : test::rank_counts({1, 2, 3, 4}))
    test::run_threads(size, every_kind_blocking);
}
TEST(BlockingKinds, OverProcesses) { test::run_processes(3, every_kind_blocking); }
TEST(BlockingKinds, OverTcp) { test::run_threads(3, every_kind_blocking, over_tcp); }

TEST(OutputsOfTheCaller, OverThreads) {
  for (const int size : test::rank_counts({1, 2, 3, 4}))
    test::run_threads(size, every_kind_by_name);
}
TEST(OutputsOfTheCaller, OverProcesses) { test::run_processes(3, every_kind_by_name); }
TEST(OutputsOfTheCaller, OverTcp) { test::run_threads(3, every_kind_by_name, over_tcp); }

TEST(BlockingKinds, BetweenNamedOperations) {
  test::run_threads(3, [](Communicator& comm) {
    for (int i = 0; i < 50; ++i) {
      Values named(3000, 1.0), one(1, comm.rank()), all(3);
      auto work = comm.allreduce("named", named, ReduceOp::sum);
      comm.allgather_blocking("lone", view(one), view(all));
      comm.broadcast_blocking("lone", view(one), 2);
      comm.barrier_blocking();
      work.wait();
      ASSERT_EQ(named[2999], 3.0);
      ASSERT_EQ(all, Values({0, 1, 2}));
      ASSERT_EQ(one[0], 2.0);
    }
  });
}

// Rank 2 calls another operation than the others. All ranks get an error that names who called
// what. Nothing is written, and the next call works.
TEST(BlockingKinds, RanksThatDisagreeAllHearTheSameAndGoOn) {
  std::mutex mutex;
  std::vector<std::string> texts;
  test::run_threads(3, [&](Communicator& comm) {
    const bool odd = comm.rank() == 2;
    Values few(4, 1.0), all(12, -1.0), many(90'000, 1.0), result(30'000, -1.0);
    const auto attempt = [&](auto&& usual, auto&& other) {
      const auto text = test::refusal([&] { odd ? other() : usual(); }, ErrorCode::mismatch);
      mutex.lock();
      texts.push_back(text);
      mutex.unlock();
      Values one(1, comm.rank()), each(3);
      comm.allgather_blocking("after", view(one), view(each));
      EXPECT_EQ(each, Values({0, 1, 2}));
    };
    attempt([&] { comm.broadcast_blocking("x", view(few)); },
            [&] { comm.allreduce_blocking("x", view(few), ReduceOp::sum); });
    attempt([&] { comm.broadcast_blocking("x", view(few), 0); },
            [&] { comm.broadcast_blocking("x", view(few), 1); });
    attempt([&] { comm.reduce_scatter_blocking("x", view(many), view(result)); },
            [&] { comm.barrier_blocking(); });
    const int64_t rows[] = {4, 4, 4}, others[] = {3, 5, 4};
    attempt(
        [&] {
          if (comm.rank() == 0) return comm.allgather_blocking("x", view(few), view(all), rows);
          return comm.allgather_blocking("x", view(few), view(all));
        },
        [&] { comm.allgather_blocking("x", view(few), view(all), others); });
    EXPECT_EQ(few, Values(4, 1.0));
    EXPECT_EQ(all, Values(12, -1.0));
    EXPECT_EQ(result, Values(30'000, -1.0));
  });
  ASSERT_EQ(texts.size(), 12u);
  const auto heard_by_all = [&](std::string_view text) {
    EXPECT_EQ(std::count_if(texts.begin(), texts.end(),
                            [&](const std::string& line) { return line.find(text) == 0; }),
              3)
        << text << "\n"
        << texts[0] << "\n"
        << texts[11];
  };
  heard_by_all(
      "rank 0 called broadcast \"x\" with f64[4] and root 0, rank 1 called broadcast \"x\" with "
      "f64[4] and root 0, rank 2 called allreduce \"x\" with f64[4] and op sum; blocking calls "
      "must have the same order and the same arguments on all ranks. Nothing was changed.");
  heard_by_all(
      "rank 0 called broadcast \"x\" with f64[4] and root 0, rank 1 called broadcast \"x\" with "
      "f64[4] and root 0, rank 2 called broadcast \"x\" with f64[4] and root 1; ");
  heard_by_all(
      "rank 0 called reduce_scatter \"x\" with f64[30000] and op average, rank 1 called "
      "reduce_scatter \"x\" with f64[30000] and op average, rank 2 called barrier \"blocking "
      "barrier\" with f32[0]; ");
  heard_by_all(
      "rank 0 called allgather \"x\" with f64[4], rank 1 called allgather \"x\" with f64[4], rank "
      "2 "
      "called allgather \"x\" with f64[5]; ");
}

// The longest part is the same, but the ranks give other row counts.
TEST(BlockingKinds, OtherRowsAreADisagreement) {
  test::run_threads(2, [](Communicator& comm) {
    Values few(4, 1.0), all(7, -1.0);
    const int64_t rows[] = {4, 3}, others[] = {3, 4};
    Values mine(4);
    const auto error = test::expect_error(ErrorCode::mismatch, "", [&] {
      comm.allgather_blocking("x", view(mine), view(all), comm.rank() == 0 ? rows : others);
    });
    EXPECT_STREQ(
        error.what(),
        "rank 0 called allgather \"x\" with f64[4], rank 1 called allgather \"x\" with "
        "f64[4], but not with the same rows for each rank or strides; blocking calls "
        "must have the same order and the same arguments on all ranks. Nothing was changed.");
    EXPECT_EQ(all, Values(7, -1.0));
  });
}

TEST(BlockingKinds, BadInputIsRefusedBeforeAnythingIsSent) {
  test::run_threads(2, [](Communicator& comm) {
    Values two(2), four(4), five(5);
    const int64_t rows[] = {2, 2}, wrong[] = {1, 3}, short_list[] = {4}, negative[] = {-1, 5};
    const int64_t strides[] = {1, 2};
    std::vector<float> floats(4);
    const TensorView columns =
        TensorView(four.data(), Shape{2, 2}, DataType::f64).with_strides(strides);
    const int64_t mine = rows[comm.rank()];
    ASSERT_EQ(mine, 2);
    test::expect_refused("1 row count were given for 2 ranks",
                         [&] { comm.allgather_blocking("x", view(two), view(four), short_list); });
    test::expect_refused("rows [-1,5] hold a negative count", [&] {
      comm.gather_blocking("x", view(two), view(four), comm.rank(), negative);
    });
    test::expect_refused(
        fmt::format("\"x\": rank {} gave a tensor of 2 rows, but rows [1,3] give it {}",
                    comm.rank(), comm.rank() == 0 ? 1 : 3),
        [&] { comm.scatter_blocking("x", view(four), view(two), comm.rank(), wrong); });
    test::expect_refused(
        fmt::format("\"x\": rank {} gave a tensor of 5 rows, but the parts of all ranks have 4",
                    comm.rank()),
        [&] { comm.reduce_scatter_blocking("x", view(five), view(two)); });
    test::expect_refused(
        "input f64[2] and output f32[4] must have the same dtype and shape, except for the first "
        "extent",
        [&] { comm.allgather_blocking("x", view(two), floats); });
    test::expect_refused("rows are moved of row-major tensors, this one has strides [1,2]",
                         [&] { comm.alltoall_blocking("x", columns, columns); });
    test::expect_refused("5 rows cannot be split equally among 2 ranks; use alltoall() with splits",
                         [&] { comm.alltoall_blocking("x", view(five), view(five)); });
    test::expect_refused("input and output share memory; give two tensors", [&] {
      comm.reduce_scatter_blocking("x", view(four),
                                   TensorView(four.data() + 1, Shape{2}, DataType::f64));
    });
    test::expect_refused(
        "input and output share memory; give two tensors, or this rank's part of the longer one",
        [&] {
          comm.allgather_blocking("x", TensorView(four.data() + 1, Shape{2}, DataType::f64),
                                  view(four));
        });
    test::expect_refused("op band cannot be applied to f64", [&] {
      comm.reduce_blocking("x", view(two), view(two), 0, ReduceOp::band);
    });
    test::expect_refused("rank 2 of 2 does not exist",
                         [&] { comm.gather_blocking("x", view(two), view(four), 2); });
    comm.allgather_blocking("x", view(two), view(four));
  });
}

TEST(OutputsOfTheCaller, OfAWrongSizeAreToldOnEveryRank) {
  test::run_threads(2, [](Communicator& comm) {
    const bool odd = comm.rank() == 1;
    Values two(2), four(4), other(4), three(3);
    const auto fails = [&](const char* part, auto&& call) {
      test::expect_error(ErrorCode::mismatch,
                         fmt::format("\"x\": rank 1 gave an output of 3 rows, but its part is {}; "
                                     "let the library make the output or give {} rows. Nothing was "
                                     "changed.",
                                     part, part),
                         call);
    };
    auto& part = odd ? three : two;
    auto& whole = odd ? three : other;
    fails("4", [&] { comm.gather("x", view(two), view(whole), 1).wait(); });
    fails("2", [&] { comm.scatter("x", view(four), view(part)).wait(); });
    fails("2", [&] { comm.reduce_scatter("x", view(four), view(part), {}).wait(); });
    fails("4", [&] { comm.alltoall("x", view(four), view(whole), {}).wait(); });
    std::vector<float> floats(2);
    test::expect_error(
        ErrorCode::mismatch,
        "\"x\": rank 1 gave an output f32[2], but the root scatters f64[4]; both must have the "
        "same dtype and shape, except for the first extent. Nothing was changed.",
        [&] {
          const auto output = odd ? TensorView(floats) : view(two);
          comm.scatter("x", view(four), output).wait();
        });
    EXPECT_EQ(three, Values(3));
    comm.scatter("x", view(four), view(two)).wait();
  });
}

TEST(OutputsOfTheCaller, BadInputIsRefusedBeforeAnythingIsSent) {
  test::run_threads(2, [](Communicator& comm) {
    Values two(2), four(4);
    const int64_t strides[] = {1, 2};
    const auto columns = TensorView(four.data(), Shape{2, 2}, DataType::f64).with_strides(strides);
    test::expect_refused(
        "reduce_scatter takes row-major tensors, this one f64[2,2] has strides [1,2]", [&] {
          Values other(8);
          static_cast<void>(comm.reduce_scatter(
              "x", TensorView(other.data(), Shape{4, 2}, DataType::f64), columns, {}));
        });
    Values eight(8);
    const auto at = [&](int64_t element, int64_t count) {
      return TensorView(eight.data() + element, Shape{count}, DataType::f64);
    };
    test::expect_refused(
        "input and output share memory; give two tensors, or one of as many rows for both",
        [&] { return comm.alltoall("x", at(0, 4), at(1, 4), {}); });
    test::expect_refused(
        "input and output share memory; give two tensors, or the beginning of the input, or this "
        "rank's part of it",
        [&] { return comm.reduce_scatter("x", at(0, 4), at(1, 2), {}); });
    test::expect_refused(
        "input and output share memory; give two tensors, or this rank's part of the longer one",
        [&] { return comm.allgather("x", at(3, 2), at(0, 4)); });
    test::expect_refused(
        "input and output share memory; give two tensors, or this rank's part of the longer one",
        [&] { return comm.allreduce("x", at(0, 4), at(1, 4)); });
    const TensorView far(two.data(), Shape{2}, DataType::f64, Device{DeviceKind::fake, 0});
    const std::string two_places =
        "the input lies on cpu and the output on fake:0; give both on one device, or leave the "
        "output out";
    test::expect_refused(two_places, [&] { return comm.reduce_scatter("x", view(four), far, {}); });
    test::expect_refused(two_places, [&] { return comm.allreduce("x", view(two), far); });
    const std::vector<NamedTransfer> group{{"x", view(two), far}};
    test::expect_refused(two_places, [&] { return comm.grouped_allreduce("group", group); });
    comm.barrier_blocking();
  });
}

}  // namespace
}  // namespace tutti
