// Queued operations of all kinds: all ranks start them in one order, and each rank holds its memory
// in its own way.

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/backends/conformance/queued_parts.h"
#include "tests/support/ranks.h"

namespace tutti::test {

// The lengths lie on both sides of every border: a cache line, one chunk, several chunks. Ranks
// hold their memory in different ways, so that a rank that works in place, or whose memory its
// peers can reach, runs beside ranks that differ.
TEST_P(BackendConformance, EveryKindInAQueue) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const int size : rank_counts({1, 2, 3, 4})) {
    open(size);
    CaseMaker maker(size, seed);
    uint64_t sequence = 0;
    for (const auto kind : kinds_of_all_ranks())
      for (const int64_t count : {0, 1, 7, size, 23, 1000, 5000, 66'000, 150'001}) {
        // First each rank gets a random form, then all ranks use the same form.
        for (int form = kForms; form >= kForms - repetitions(kForms); --form) {
          auto test = maker.make(kind, DataType::f32, ReduceOp::sum, count);
          know_longest(test);
          std::vector<std::unique_ptr<Part>> parts;
          std::vector<Running> running;
          ++sequence;
          for (int rank = 0; rank < size; ++rank) {
            const int own = form < kForms ? form : static_cast<int>(random() % kForms);
            parts.push_back(
                std::make_unique<Part>(backend(rank), test, rank, static_cast<Form>(own)));
            running.push_back({rank, start_in_queue(backend(rank), parts.back()->collective,
                                                    launch_in(0, sequence))});
          }
          finish(running, OperationState::done);
          for (const auto& part : parts) part->check();
          if (HasFailure())
            FAIL() << to_string(kind) << " count " << count << " size " << size << " form " << form;
        }
      }
  }
}

// An alltoall in place: a rank receives as many elements as it sends, but the counts per peer
// differ. The backend must not overwrite elements that it has not sent yet, however many chunks
// there are.
TEST_P(BackendConformance, AnAlltoallInPlaceWithOtherCountsBack) {
  constexpr int kSize = 3;
  // Counts to itself, to the next rank, and to the rank before.
  constexpr int64_t kCounts[kSize] = {10, 60'000, 20'000};
  open(kSize);
  uint64_t sequence = 0;
  for (const auto form : {Form::in_place, Form::region_in_place}) {
    auto test = CaseMaker(kSize, 1).make(CollectiveKind::alltoall, DataType::f32, ReduceOp::sum, 0);
    for (size_t one = 0; one < kSize; ++one)
      for (size_t other = 0; other < kSize; ++other) {
        const auto add = [&](auto& counts, auto& bytes, size_t from, size_t to) {
          counts[other] = kCounts[(kSize + to - from) % kSize];
          const auto part = small_numbers(DataType::f32, counts[other], from * kSize + to);
          bytes.insert(bytes.end(), part.begin(), part.end());
        };
        add(test.send_counts[one], test.inputs[one], one, other);
        add(test.recv_counts[one], test.expected[one], other, one);
      }
    for (auto& output : test.outputs) output.resize(test.expected[0].size());
    know_longest(test);
    std::vector<std::unique_ptr<Part>> parts;
    std::vector<Running> running;
    ++sequence;
    for (int rank = 0; rank < kSize; ++rank) {
      parts.push_back(std::make_unique<Part>(backend(rank), test, rank, form));
      running.push_back(
          {rank, start_in_queue(backend(rank), parts.back()->collective, launch_in(0, sequence))});
    }
    finish(running, OperationState::done);
    for (const auto& part : parts) part->check();
  }
}

// Many operations of all kinds at the same time, with ranks far apart in the queue and vetoed
// operations in between.
TEST_P(BackendConformance, MixedKindsInOneOrder) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr size_t kOperations = 60;
  const auto kinds = kinds_of_all_ranks();
  for (const int size : rank_counts({2, 3, 5})) {
    open(size);
    CaseMaker maker(size, random());
    struct One {
      Case test;
      uint32_t verdict = 0;
      int vetoing = 0;
      std::vector<std::unique_ptr<Part>> parts;
      std::vector<Running> running;
      std::string_view name() const { return to_string(test.shape.kind); }
    };
    std::vector<std::unique_ptr<One>> all;
    const int64_t counts[] = {0, 3, 40, 3000, 70'000, 140'000};
    for (size_t i = 0; i < kOperations; ++i) {
      auto one = std::make_unique<One>();
      const auto kind = kinds[random() % kinds.size()];
      one->test = maker.make(kind, DataType::i32, ReduceOp::sum, counts[random() % 6]);
      know_longest(one->test);
      const Part sample(backend(0), one->test, 0, Form::apart);
      const bool may_veto = reduces(kind) || kind == CollectiveKind::barrier ||
                            backend(0).packs_itself(sample.collective, launch_in(1, i + 1));
      one->verdict = may_veto && random() % 4 == 0 ? 8 : 0;
      one->vetoing = static_cast<int>(random() % static_cast<uint64_t>(size));
      one->parts.resize(static_cast<size_t>(size));
      all.push_back(std::move(one));
    }
    run_far_ahead(all, random, [&](int rank, One& one, uint64_t tag) {
      const auto form = static_cast<Form>(random() % kForms);
      auto& part = one.parts[static_cast<size_t>(rank)];
      part = std::make_unique<Part>(backend(rank), one.test, rank, form);
      auto launch = launch_in(1, tag);
      launch.verdict = one.vetoing == rank ? one.verdict : 0;
      auto collective = part->collective;
      if (launch.verdict != 0) collective.input = collective.output = nullptr;
      return start_in_queue(backend(rank), collective, launch);
    });
    if (HasFatalFailure()) return;
    for (const auto& one : all)
      for (const auto& part : one->parts) {
        if (one->verdict == 0)
          part->check();
        else
          part->check_untouched();
      }
    if (HasFailure()) FAIL() << "size " << size;
  }
}

// Invalid counts are refused before the backend sends anything to the peers.
TEST_P(BackendConformance, CountsThatMakeNoSenseAreRefusedInAQueue) {
  open(2);
  std::byte memory[64] = {};
  const int64_t counts[] = {1, 1}, negative[] = {1, -1};
  const auto refuses = [&](CollectiveKind kind, int root, std::span<const int64_t> given) {
    Collective bad{kind, DataType::f32, ReduceOp::sum, root, memory, memory, given, {}, {}};
    bad.longest = 1;
    EXPECT_THROW(start_in_queue(backend(0), bad, launch_in(0, 1)), Error) << to_string(kind);
  };
  refuses(CollectiveKind::broadcast, 2, std::span(counts, 1));
  refuses(CollectiveKind::allgather, 0, std::span(counts, 1));
  refuses(CollectiveKind::scatter, 0, negative);
  refuses(CollectiveKind::alltoall, 0, counts);
  CaseMaker maker(2, 5);
  auto next = maker.make(CollectiveKind::allgather, DataType::f32, ReduceOp::sum, 1000);
  run(next);
}

}  // namespace tutti::test
