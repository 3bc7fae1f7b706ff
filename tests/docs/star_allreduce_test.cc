// The algorithm in docs/extending.md, checked on symbols like the library's own algorithms.
#include <gtest/gtest.h>

#include <vector>

#include "tests/collectives/validate.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {
namespace {

Schedule star_allreduce(const Problem& problem) {
  Builder builder;
  const Range all{0, problem.counts[0]};
  if (problem.rank == 0) {
    const int64_t begin = builder.scratch((problem.size - 1) * all.count);
    for (int peer = 1; peer < problem.size; ++peer)
      builder.recv(peer, Slot::scratch, {begin + (peer - 1) * all.count, all.count});
    builder.reduce(Slot::input, all, {problem.size, 0, begin, all.count}, Slot::output, 0);
    builder.next_round();
    for (int peer = 1; peer < problem.size; ++peer) builder.send(peer, Slot::output, all);
  } else {
    builder.send(0, Slot::input, all);
    builder.next_round();
    builder.recv(0, Slot::output, all);
  }
  auto schedule = builder.take();
  schedule.scales_at_owner = true;  // rank 0 divides, once
  return schedule;
}

TEST(Docs, TheAlgorithmOfExtendingIsOne) {
  for (int size = 1; size <= 5; ++size)
    for (const int64_t count : {0, 1, 7}) {
      std::vector<Problem> problems;
      std::vector<Schedule> schedules;
      for (int rank = 0; rank < size; ++rank) {
        auto& problem = problems.emplace_back();
        problem.rank = rank;
        problem.size = size;
        problem.counts = {&count, 1};
        schedules.push_back(star_allreduce(problem));
      }
      EXPECT_EQ(simulate(problems, schedules).fault, "") << size << " ranks, " << count;
    }
}

}  // namespace
}  // namespace tutti
