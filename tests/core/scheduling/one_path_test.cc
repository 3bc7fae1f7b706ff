// Counters show which path each operation takes in shared memory. Every kind and size goes chunk by
// chunk through slots, named or blocking. A schedule over the streams between ranks runs only if an
// override asks for it, and for transfers between two ranks.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/collectives/schedule.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

// The calls of one kind, named and blocking, with `count` elements of memory for each rank.
class Calls {
 public:
  Calls(Communicator& comm, CollectiveKind kind, int64_t count)
      : comm_(comm),
        kind_(kind),
        part_(static_cast<size_t>(count), 1.0f),
        whole_(part_.size() * static_cast<size_t>(comm.size()), 1.0f),
        other_(whole_.size()) {}

  void named() {
    switch (kind_) {
      case CollectiveKind::allreduce:
        return comm_.allreduce("x", part_).wait();
      case CollectiveKind::allgather:
        return comm_.allgather("x", part_, whole_).wait();
      case CollectiveKind::broadcast:
        return comm_.broadcast("x", part_).wait();
      case CollectiveKind::reduce:
        return comm_.reduce("x", part_, part_).wait();
      case CollectiveKind::gather:
        return comm_.gather("x", part_, whole_, 0).wait();
      case CollectiveKind::scatter:
        return comm_.scatter("x", whole_, TensorView(part_), 0).wait();
      case CollectiveKind::reduce_scatter:
        return comm_.reduce_scatter("x", whole_, part_, {}).wait();
      case CollectiveKind::alltoall:
        return comm_.alltoall("x", whole_, other_, {}).wait();
      case CollectiveKind::barrier:
        return comm_.barrier("x").wait();
      case CollectiveKind::send:
      case CollectiveKind::recv: {
        std::vector<float> got(part_.size());
        auto sent = comm_.send(fmt::format("from {}", comm_.rank()), part_, right());
        comm_.recv(fmt::format("from {}", left()), got, left()).wait();
        return sent.wait();
      }
    }
  }
  void blocking() {
    switch (kind_) {
      case CollectiveKind::allreduce:
        return comm_.allreduce_blocking("x", TensorView(part_));
      case CollectiveKind::allgather:
        return comm_.allgather_blocking("x", part_, whole_);
      case CollectiveKind::broadcast:
        return comm_.broadcast_blocking("x", part_);
      case CollectiveKind::reduce:
        return comm_.reduce_blocking("x", part_, part_);
      case CollectiveKind::gather:
        return comm_.gather_blocking("x", part_, whole_);
      case CollectiveKind::scatter:
        return comm_.scatter_blocking("x", whole_, part_);
      case CollectiveKind::reduce_scatter:
        return comm_.reduce_scatter_blocking("x", whole_, part_);
      case CollectiveKind::alltoall:
        return comm_.alltoall_blocking("x", whole_, other_);
      case CollectiveKind::barrier:
        return comm_.barrier_blocking();
      case CollectiveKind::send:
      case CollectiveKind::recv: {
        std::vector<float> got(part_.size());
        return comm_.sendrecv_blocking(fmt::format("from {}", comm_.rank()), part_, right(),
                                       fmt::format("from {}", left()), got, left());
      }
    }
  }

 private:
  int right() const { return (comm_.rank() + 1) % comm_.size(); }
  int left() const { return (comm_.rank() + comm_.size() - 1) % comm_.size(); }

  Communicator& comm_;
  const CollectiveKind kind_;
  std::vector<float> part_, whole_, other_;
};

// Returns the bytes of a step that went through streams to the peers, including the framing.
uint64_t streamed_by(Communicator& comm, const std::function<void()>& step) {
  const auto total = [&] {
    const auto bytes = comm.statistics().bytes_to_peer;
    return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  };
  // Until the step is replayed, control messages use the streams, too. Later only a ping may; the
  // minimum excludes it.
  for (int i = 0; i < 6; ++i) step();
  uint64_t least = ~uint64_t{0};
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto before = total();
    for (int i = 0; i < 4; ++i) step();
    least = std::min(least, (total() - before) / 4);
  }
  return least;
}

constexpr int64_t kSizes[] = {1, 1 << 10, 1 << 16, 1 << 20};  // elements

bool is_between_two(CollectiveKind kind) {
  return kind == CollectiveKind::send || kind == CollectiveKind::recv;
}

void list_all(Communicator& comm, const std::string& how) {
  for (int number = 0; number < kCollectiveKindCount; ++number) {
    const auto kind = static_cast<CollectiveKind>(number);
    if (kind == CollectiveKind::recv) continue;  // tested with its send
    std::string row;
    for (const int64_t count : kSizes) {
      // Each count has its own communicator, whose steps are soon replayed.
      const auto ranks = comm.split(0);
      Calls calls(*ranks, kind, count);
      const auto named = streamed_by(*ranks, [&] { calls.named(); });
      const auto blocking = streamed_by(*ranks, [&] { calls.blocking(); });
      row += fmt::format(" {:>8} {:>8}", named, blocking);
      const auto bytes = static_cast<uint64_t>(count) * sizeof(float);
      if (is_between_two(kind)) {
        EXPECT_GE(named, bytes);
        EXPECT_LT(named, bytes + bytes / 8 + 256);
        EXPECT_TRUE(blocking == 0 || !how.empty()) << blocking << " of " << bytes << " bytes";
      } else if (how.empty()) {
        EXPECT_EQ(named, 0u) << to_string(kind) << " of " << bytes << " bytes";
        EXPECT_EQ(blocking, 0u) << to_string(kind) << " of " << bytes << " bytes";
      } else {
        // Maybe only the root sends, or only the root receives. Rank 0 is the root.
        EXPECT_TRUE(named > 0 || comm.rank() > 0 || kind == CollectiveKind::reduce ||
                    kind == CollectiveKind::gather)
            << to_string(kind) << " of " << bytes << " bytes";
      }
    }
    const auto* why =
        is_between_two(kind) ? "  named by the ring of the two, see docs/decisions.md" : "";
    if (comm.rank() == 0) fmt::print("{:>15}{}{}\n", to_string(kind), row, why);
  }
}

void list_by(const std::string& algorithms) {
  test::run_processes(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 0) {
          fmt::print("bytes a call of rank 0 that went through streams, shm, 2 ranks, {}\n",
                     algorithms.empty() ? "as it comes" : algorithms);
          std::string head = fmt::format("{:>15}", "");
          for (const int64_t count : kSizes)
            head += fmt::format(" {:>8} {:>8}", fmt::format("{} B", 4 * count), "blocking");
          fmt::print("{}\n", head);
        }
        list_all(comm, algorithms);
      },
      [&](Options& options) {
        options.backend = "shm";
        options.algorithms = algorithms;
      },
      120);
}

TEST(OnePath, EveryKindAndSizeGoesThroughSlots) { list_by(""); }

TEST(OnePath, SchedulesRunWhereAnOverrideAsksForThem) {
  std::string scores;
  for (int number = 0; number < kCollectiveKindCount; ++number) {
    const auto kind = static_cast<CollectiveKind>(number);
    if (is_between_two(kind)) continue;
    const auto all = algorithms();
    const auto one = std::ranges::find(all, kind, &Algorithm::kind);
    ASSERT_NE(one, all.end());
    scores += fmt::format("{}{}:0-inf={}", scores.empty() ? "" : ";", to_string(kind), one->name);
  }
  list_by(scores);
}

}  // namespace
}  // namespace tutti
