#include "tests/backends/conformance/backend_conformance.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/ranks.h"

namespace tutti::test {

TEST_P(BackendConformance, EveryKindAtEveryCount) {
  for (const int size : {1, 2, 3, 4, 5}) {
    open(size);
    CaseMaker maker(size, static_cast<uint64_t>(size));
    for (const auto kind : all_kinds())
      for (const int64_t count : {0, 1, size - 1, size, size + 1, 17, 1000, 10'007}) {
        auto test = maker.make(kind, DataType::f32, ReduceOp::sum, count);
        run(test);
        if (HasFailure()) FAIL() << to_string(kind) << " count " << count << " size " << size;
      }
  }
}

TEST_P(BackendConformance, EveryTypeAndOp) {
  open(3);
  CaseMaker maker(3, 3);
  for (int d = 0; d < kDataTypeCount; ++d)
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DataType>(d);
      const auto op = static_cast<ReduceOp>(o);
      const bool serves = backend(0).capabilities().serves(CollectiveKind::allreduce, dtype, op);
      EXPECT_EQ(serves, can_reduce(dtype, op));
      for (const auto kind :
           {CollectiveKind::allreduce, CollectiveKind::reduce, CollectiveKind::reduce_scatter}) {
        if (!serves) {
          std::byte memory[64] = {};
          const int64_t counts[] = {1, 1, 1};
          const Collective bad{kind, dtype, op, 0, memory, memory, counts, {}, {}};
          EXPECT_THROW(backend(0).start(bad, {}), Error);
          continue;
        }
        for (const int64_t count : {5, 3001}) {
          auto test = maker.make(kind, dtype, op, count);
          run(test);
        }
      }
      if (HasFailure()) FAIL() << to_string(dtype) << " " << to_string(op);
    }
}

TEST_P(BackendConformance, LargeAndInPlace) {
  open(2);
  CaseMaker maker(2, 7);
  auto test = maker.make(CollectiveKind::allreduce, DataType::f32, ReduceOp::average, 3'000'001);
  test.outputs = test.inputs;
  std::vector<Running> running;
  for (int rank = 0; rank < 2; ++rank) {
    auto collective = test.of(rank);
    collective.input = collective.output;
    running.push_back({rank, backend(rank).start(collective, launch_of(1))});
  }
  finish(running, OperationState::done);
  test.check();
}

// Runs eight operations at the same time on each of two communicators. Each rank starts them in its
// own order, and they are polled in random order.
TEST_P(BackendConformance, ManyOperationsInFlightInAnyOrder) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr int kSize = 3, kOperations = 8;
  const auto kinds = all_kinds();
  Backends worlds[2] = {GetParam().make(kSize), GetParam().make(kSize)};
  for (int round = 0; round < 10; ++round) {
    struct One {
      int world, rank;
      uint64_t tag;
      Case* test;
      OperationPtr operation;
    };
    std::vector<std::unique_ptr<Case>> cases;
    std::vector<One> waiting, running;
    for (int world = 0; world < 2; ++world)
      for (uint64_t i = 0; i < kOperations; ++i) {
        CaseMaker maker(kSize, random());
        // A send needs pairs of ranks; the other kinds involve every rank.
        const auto kind = kinds[random() % kinds.size()];
        cases.push_back(std::make_unique<Case>(
            maker.make(kind == CollectiveKind::send ? CollectiveKind::barrier : kind, DataType::i32,
                       ReduceOp::sum, static_cast<int64_t>(random() % 9000))));
        for (int rank = 0; rank < kSize; ++rank)
          waiting.push_back({world, rank, static_cast<uint64_t>(round) * kOperations + i + 1,
                             cases.back().get(), nullptr});
      }
    std::shuffle(waiting.begin(), waiting.end(), random);
    const auto deadline = Deadline::after(kPatience);
    while (!(waiting.empty() && running.empty()) && !deadline.passed()) {
      if (!waiting.empty()) {
        auto& one = waiting.back();
        auto& backend = *worlds[one.world][static_cast<size_t>(one.rank)];
        one.operation = backend.start(one.test->of(one.rank), launch_of(one.tag));
        running.push_back(std::move(one));
        waiting.pop_back();
      }
      std::shuffle(running.begin(), running.end(), random);
      std::erase_if(running, [](One& one) {
        const auto state = one.operation->advance();
        EXPECT_TRUE(state == OperationState::pending || state == OperationState::done);
        return state != OperationState::pending;
      });
      for (auto& world : worlds)
        for (auto& backend : world) backend->progress();
    }
    ASSERT_TRUE(waiting.empty() && running.empty());
    for (const auto& test : cases) test->check();
  }
}

// One rank may start operations alone. They stay pending until the other ranks start them too.
TEST_P(BackendConformance, StartNeverWaits) {
  open(2);
  CaseMaker maker(2, 9);
  std::vector<Case> cases;
  std::vector<Running> running;
  for (const auto kind : all_kinds())
    cases.push_back(maker.make(kind, DataType::f32, ReduceOp::sum, 200'000));
  for (const int rank : {1, 0}) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const uint64_t tag = i + 1;
      running.push_back({rank, backend(rank).start(cases[i].of(rank), launch_of(tag))});
    }
    for (auto& one : running) EXPECT_EQ(one.operation->advance(), OperationState::pending);
  }
  finish(running, OperationState::done);
  for (const auto& test : cases) test.check();
}

// A tensor outside of the bucket: the operation's edges read the input before the operation and
// write the output after it.
struct Outside {
  std::vector<float> input, output, bucket;
  int fills = 0, drains = 0;

  static Edges edges(Outside& outside) {
    return {&outside,
            [](void* self, Range range, std::byte* bucket) {
              auto& it = *static_cast<Outside*>(self);
              ++it.fills;
              std::copy_n(it.input.begin() + range.begin, range.count,
                          reinterpret_cast<float*>(bucket));
            },
            [](void* self, Range range, const std::byte* bucket, Scale scale) {
              auto& it = *static_cast<Outside*>(self);
              ++it.drains;
              for (int64_t i = 0; i < range.count; ++i)
                it.output[static_cast<size_t>(range.begin + i)] =
                    reinterpret_cast<const float*>(bucket)[i] *
                    static_cast<float>(scale.factor / static_cast<double>(scale.divisor));
            }};
  }

  /// Sums the input of all ranks into the output. A backend that does not pack tensors itself gets
  /// the bucket. `tag_step` is then added to the tag, because the tags of this backend's queues
  /// form one sequence.
  OperationPtr start_sum(Backend& end, Launch launch, std::span<const int64_t> counts,
                         uint64_t tag_step = 0) {
    launch.edges = edges(*this);
    Collective collective{CollectiveKind::allreduce,
                          DataType::f32,
                          ReduceOp::sum,
                          0,
                          nullptr,
                          nullptr,
                          counts,
                          {},
                          {}};
    if (!end.packs_itself(collective, launch)) {
      launch.tag += tag_step;
      collective.input = collective.output = reinterpret_cast<std::byte*>(bucket.data());
    }
    return end.start(collective, launch);
  }
};

TEST_P(BackendConformance, AVetoOfOneRankIsEverybodys) {
  for (const int size : rank_counts({2, 3, 5})) {
    open(size);
    for (const int64_t count : {0, 1, 1000, 20'000, 600'000})
      for (const uint32_t verdict : {0u, 4u}) {
        std::vector<Outside> outsides(static_cast<size_t>(size));
        std::vector<Running> running;
        const int64_t counts[] = {count};
        const auto n = static_cast<size_t>(count);
        ++tag_;
        for (int rank = 0; rank < size; ++rank) {
          auto& outside = outsides[static_cast<size_t>(rank)];
          outside.input.assign(n, static_cast<float>(rank + 1));
          outside.output.assign(n, -1);
          outside.bucket.assign(n, -2);
          auto* bucket = reinterpret_cast<std::byte*>(outside.bucket.data());
          Launch launch;
          launch.tag = tag_;
          launch.verdict = rank == size - 1 ? verdict : 0;
          launch.edges = Outside::edges(outside);
          const Collective collective{CollectiveKind::allreduce,
                                      DataType::f32,
                                      ReduceOp::average,
                                      0,
                                      bucket,
                                      bucket,
                                      counts,
                                      {},
                                      {}};
          running.push_back({rank, backend(rank).start(collective, launch)});
        }
        finish(running, verdict ? OperationState::vetoed : OperationState::done);
        for (const auto& outside : outsides) {
          const float mean = static_cast<float>(size + 1) / 2;
          EXPECT_TRUE(same(outside.output, std::vector<float>(n, verdict ? -1 : mean)));
          if (verdict) {
            EXPECT_EQ(outside.drains, 0);
          }
        }
        if (HasFailure()) FAIL() << "size " << size << " count " << count << " verdict " << verdict;
      }
  }
}

// Allreduces so long that a backend may try one algorithm on the first elements and then change to
// another.
TEST_P(BackendConformance, LongAllreducesOfEveryForm) {
  constexpr int64_t kCount = 1'600'001;
  for (const int size : rank_counts({2, 3})) {
    open(size);
    CaseMaker maker(size, 11);
    uint64_t sequence = 0;
    const auto launch = [&] {
      Launch launch;
      launch.queue = 0;
      launch.tag = sequence;
      return launch;
    };
    const std::pair<DataType, ReduceOp> forms[] = {{DataType::f32, ReduceOp::average},
                                                   {DataType::f16, ReduceOp::sum},
                                                   {DataType::i32, ReduceOp::max}};
    for (const auto& [dtype, op] : forms) {
      auto test = maker.make(CollectiveKind::allreduce, dtype, op, kCount);
      std::vector<Running> running;
      ++sequence;
      for (int rank = 0; rank < size; ++rank)
        running.push_back({rank, backend(rank).start(test.of(rank), launch())});
      finish(running, OperationState::done);
      test.check();
    }
    const int64_t counts[] = {kCount};
    std::vector<Outside> outsides(static_cast<size_t>(size));
    std::vector<Running> running;
    ++sequence;
    std::vector<float> cycle(1021), expected(kCount);
    for (int rank = 0; rank < size; ++rank) {
      auto& outside = outsides[static_cast<size_t>(rank)];
      outside.input.resize(kCount);
      std::iota(cycle.begin(), cycle.end(), static_cast<float>(rank));
      fill_cycle(std::span(outside.input), cycle);
      outside.output.assign(kCount, -1);
      outside.bucket.assign(kCount, -2);
      running.push_back({rank, outside.start_sum(backend(rank), launch(), counts)});
    }
    finish(running, OperationState::done);
    for (size_t i = 0; i < cycle.size(); ++i)
      cycle[i] = static_cast<float>(size * static_cast<int>(i) + size * (size - 1) / 2);
    fill_cycle(std::span(expected), cycle);
    for (const auto& outside : outsides) EXPECT_TRUE(same(outside.output, expected));
  }
}

// All ranks start the operations of a queue in one order, which a backend may use for faster
// algorithms. This test covers every size at which the algorithm may change, many operations at the
// same time, ranks that are far apart, several queues, and vetoes (a rank refuses the operation) in
// between.
TEST_P(BackendConformance, QueuedOperationsInOneOrder) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const int size : rank_counts({2, 3, 4})) {
    open(size);
    struct One {
      int64_t count;
      uint32_t verdict;
      std::vector<Outside> outsides;
      std::vector<Running> running;
      std::string name() const { return fmt::format("{} elements", count); }
    };
    for (const int queue : {0, 1, 2}) {
      std::vector<std::unique_ptr<One>> all;
      for (const int64_t count : {0, 1, 5, 22, 23, 1000, 8191, 16'385, 40'000, 131'072, 400'001}) {
        all.push_back(std::make_unique<One>());
        all.back()->count = count;
        all.back()->verdict = random() % 5 == 0 ? 2u : 0u;
        all.back()->outsides.resize(static_cast<size_t>(size));
      }
      std::shuffle(all.begin(), all.end(), random);
      run_far_ahead(all, random, [&](int rank, One& one, uint64_t tag) {
        auto& outside = one.outsides[static_cast<size_t>(rank)];
        const auto n = static_cast<size_t>(one.count);
        outside.input.assign(n, static_cast<float>(rank + 1));
        outside.output.assign(n, -1);
        outside.bucket.assign(n, -2);
        Launch launch;
        launch.queue = queue;
        launch.tag = tag;
        launch.verdict = rank == static_cast<int>(tag) % size ? one.verdict : 0;
        return outside.start_sum(backend(rank), launch, std::span(&one.count, 1),
                                 static_cast<uint64_t>(queue) * 1000);
      });
      if (HasFatalFailure()) FAIL() << "queue " << queue;
      const auto sum = static_cast<float>(size * (size + 1) / 2);
      for (const auto& one : all)
        for (const auto& outside : one->outsides)
          EXPECT_TRUE(same(outside.output, std::vector<float>(static_cast<size_t>(one->count),
                                                              one->verdict ? -1.0f : sum)));
      if (HasFailure()) FAIL() << "size " << size << " queue " << queue;
    }
  }
}

// Cancelled operations leave gaps in a queue. The queue works again when its tags restart.
TEST_P(BackendConformance, AQueueBeginsAnewAfterAVeto) {
  open(3);
  const int64_t counts[] = {100'000};
  for (uint64_t plan = 1; plan <= 6; ++plan) {
    std::vector<std::vector<float>> values(3, std::vector<float>(100'000, 1.0f));
    const auto launch = [&](int rank, uint64_t sequence, uint32_t verdict) {
      auto* data = reinterpret_cast<std::byte*>(values[static_cast<size_t>(rank)].data());
      Launch launch;
      launch.queue = 1;
      launch.tag = plan << kQueueTagBits | sequence;
      launch.verdict = verdict;
      return backend(rank).start(
          {CollectiveKind::allreduce, DataType::f32, ReduceOp::sum, 0, data, data, counts, {}, {}},
          launch);
    };
    // Ranks 0 and 1 run ahead; rank 2 vetoes the first operation.
    std::vector<Running> first, ahead;
    for (const int rank : {0, 1}) {
      first.push_back({rank, launch(rank, 0, 0)});
      for (uint64_t sequence = 1; sequence <= plan; ++sequence)
        ahead.push_back({rank, launch(rank, sequence, 0)});
    }
    first.push_back({2, launch(2, 0, 1)});
    finish(first, OperationState::vetoed);
    for (auto& one : ahead) one.operation->cancel();
    for (int rank = 0; rank < 3; ++rank)
      backend(rank).transport()->discard(plan << kQueueTagBits, ((plan + 1) << kQueueTagBits) - 1);
    finish(ahead, OperationState::failed);
    for (const auto& value : values) EXPECT_TRUE(same(value, std::vector<float>(100'000, 1.0f)));
  }
}

TEST_P(BackendConformance, CancelledEverywhereHarmsNobody) {
  open(3);
  CaseMaker maker(3, 11);
  for (int rounds = 0; rounds < 12; ++rounds) {
    auto test = maker.make(CollectiveKind::allreduce, DataType::f32, ReduceOp::sum, 300'000);
    auto running = start(test, ++tag_);
    for (int i = 0; i < rounds; ++i)
      for (auto& one : running) {
        backend(one.rank).progress();
        if (one.state == OperationState::pending) one.state = one.operation->advance();
      }
    for (auto& one : running)
      if (one.state == OperationState::pending) one.operation->cancel();
    const auto deadline = Deadline::after(kPatience);
    for (bool pending = true; pending && !deadline.passed();) {
      pending = false;
      for (auto& one : running) {
        backend(one.rank).progress();
        if (one.state == OperationState::pending) one.state = one.operation->advance();
        pending |= one.state == OperationState::pending;
      }
    }
    for (auto& one : running) {
      EXPECT_NE(one.state, OperationState::pending);
      one.operation.reset();
    }
    // Discards the messages of the cancelled operation that are still on their way.
    for (int rank = 0; rank < 3; ++rank) backend(rank).transport()->discard(tag_, tag_);
    auto next = maker.make(CollectiveKind::allreduce, DataType::f32, ReduceOp::sum, 1000);
    run(next);
  }
}

}  // namespace tutti::test
