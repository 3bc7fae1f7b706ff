#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/backends/conformance/collective_cases.h"
#include "tests/backends/support/world.h"
#include "tutti/base/error.h"

// The conformance suite of Backend. backend_conformance.cc tests collectives,
// backend_queue_conformance.cc queues, and backend_life_conformance.cc the end of ranks and sleep.
// This header has the fixture. A test program links the suite (LIBRARIES tutti_backend_conformance)
// and names its backends:
//   INSTANTIATE_TEST_SUITE_P(Memory, BackendConformance, testing::Values(...));
// All ranks live in this process. Unless a test says otherwise, one thread drives them all, so a
// call that waited for another rank would hang.

namespace tutti::test {

using Backends = std::vector<std::unique_ptr<Backend>>;

struct BackendMaker {
  std::string name;
  std::function<Backends(int size)> make;
};

inline void PrintTo(const BackendMaker& maker, std::ostream* out) { *out << maker.name; }

/// So small that a few thousand elements make several segments.
constexpr int64_t kTestSegmentBytes = 4096;

inline Launch launch_of(uint64_t tag) {
  Launch launch;
  launch.tag = tag;
  return launch;
}

class BackendConformance : public testing::TestWithParam<BackendMaker> {
 protected:
  static constexpr double kPatience = 20;

  void open(int size) { ends_ = GetParam().make(size); }
  int size() const { return static_cast<int>(ends_.size()); }
  Backend& backend(int rank) { return *ends_[static_cast<size_t>(rank)]; }
  bool takes_part(const Case& test, int rank) const {
    return test.shape.kind != CollectiveKind::send || (rank | 1) < size();
  }

  struct Running {
    int rank;
    OperationPtr operation;
    OperationState state = OperationState::pending;
  };

  std::vector<Running> start(Case& test, uint64_t tag, uint32_t verdict_of_rank_0 = 0,
                             const std::vector<Edges>& edges = {}) {
    std::vector<Running> running;
    for (int rank = 0; rank < size(); ++rank) {
      if (!takes_part(test, rank)) continue;
      Launch launch;
      launch.tag = tag;
      launch.verdict = rank == 0 ? verdict_of_rank_0 : 0;
      if (!edges.empty()) launch.edges = edges[static_cast<size_t>(rank)];
      running.push_back({rank, backend(rank).start(test.of(rank), launch)});
    }
    return running;
  }
  /// Drives all ranks until every operation has ended.
  void finish(std::vector<Running>& running, OperationState expected) {
    const auto deadline = Deadline::after(kPatience);
    bool pending = true;
    while (pending && !deadline.passed()) {
      pending = false;
      for (auto& backend : ends_)
        if (backend) backend->progress();
      for (auto& one : running) {
        if (one.state != OperationState::pending) continue;
        one.state = one.operation->advance();
        if (one.state == OperationState::pending)
          pending = true;
        else
          one.operation.reset();
      }
    }
    for (const auto& one : running)
      EXPECT_EQ(one.state, expected) << "rank " << one.rank << " of " << size();
  }
  /// Starts all operations on all ranks, of which one may be many operations ahead of another, and
  /// drives them until they are over. `start(rank, one, tag)` starts one.
  template <class One, class Start>
  void run_far_ahead(std::vector<std::unique_ptr<One>>& all, std::mt19937_64& random,
                     const Start& start) {
    std::vector<size_t> started(static_cast<size_t>(size()), 0);
    const size_t wanted = all.size() * started.size();
    const auto deadline = Deadline::after(kPatience);
    size_t over = 0;
    while (over < wanted && !deadline.passed()) {
      const int rank = static_cast<int>(random() % started.size());
      auto& count = started[static_cast<size_t>(rank)];
      if (count < all.size() && random() % 3 == 0) {
        auto& one = *all[count++];
        one.running.push_back({rank, start(rank, one, count)});
      }
      backend(rank).progress();
      for (auto& one : all)
        for (auto& running : one->running) {
          if (running.rank != rank || running.state != OperationState::pending) continue;
          running.state = running.operation->advance();
          if (running.state == OperationState::pending) continue;
          ++over;
          running.operation.reset();
          EXPECT_EQ(running.state, one->verdict ? OperationState::vetoed : OperationState::done)
              << one->name();
        }
    }
    ASSERT_EQ(over, wanted) << "of " << size() << " ranks";
  }
  void run(Case& test) {
    auto running = start(test, ++tag_);
    finish(running, OperationState::done);
    test.check();
  }

  static std::vector<CollectiveKind> all_kinds() {
    return {CollectiveKind::allreduce,      CollectiveKind::allgather, CollectiveKind::broadcast,
            CollectiveKind::reduce,         CollectiveKind::gather,    CollectiveKind::scatter,
            CollectiveKind::reduce_scatter, CollectiveKind::alltoall,  CollectiveKind::send,
            CollectiveKind::barrier};
  }

  Backends ends_;
  uint64_t tag_ = 0;
};

}  // namespace tutti::test
