// Averages whose sums overflow their type: every algorithm of a backend must give the same result.

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/backends/conformance/queued_parts.h"
#include "tests/support/ranks.h"

namespace tutti::test {

// Runs each average twice on all ranks: outside queues, and in a queue as the engine would start
// it.
TEST_P(BackendConformance, AveragesAtTheLimitsOfTheirTypes) {
  constexpr DataType kTypes[] = {DataType::i8,  DataType::i16, DataType::i32, DataType::i64,
                                 DataType::u8,  DataType::u16, DataType::u32, DataType::u64,
                                 DataType::f16, DataType::bf16};
  for (const int size : rank_counts({2, 3, 4, 5})) {
    open(size);
    uint64_t sequence = 0;
    for (const auto dtype : kTypes)
      for (const auto kind :
           {CollectiveKind::allreduce, CollectiveKind::reduce, CollectiveKind::reduce_scatter})
        for (const int64_t count : {1, 7, 3001, 20'000})
          for (const bool is_queued : {false, true})
            for (const int variant : {0, 1, 2}) {
              CaseMaker maker(size, static_cast<uint64_t>(count));
              maker.at_limits = true;
              // Only an allreduce can run when some ranks have joined.
              maker.absent = variant == 1 && kind == CollectiveKind::allreduce ? size - 1 : -1;
              maker.postscale = variant == 2 ? 0.5 : 1;
              auto test = maker.make(kind, dtype, ReduceOp::average, count);
              std::vector<Running> running;
              ++sequence;
              for (int rank = 0; rank < size; ++rank) {
                auto launch = launch_in(is_queued ? 0 : kNoQueue, sequence);
                if (maker.absent >= 0) launch.contributors = size - 1;
                const bool is_bucket = is_queued && kind == CollectiveKind::allreduce;
                running.push_back(
                    {rank, is_bucket ? backend(rank).start(test.of(rank), launch)
                                     : start_in_queue(backend(rank), test.of(rank), launch)});
              }
              finish(running, OperationState::done);
              test.check();
              if (HasFailure())
                FAIL() << to_string(kind) << " of " << count << ' ' << to_string(dtype) << ", size "
                       << size << ", queued " << is_queued << ", variant " << variant;
            }
  }
}

}  // namespace tutti::test
