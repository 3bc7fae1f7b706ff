// Memory of Communicator::allocate(): which ranks read it in place, who frees it when, and who may
// map it.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::expect_error;
using test::expect_refused;
using test::over;
using test::run_processes;
using test::run_threads;
using test::still_works;

TEST(SharedRegion, IsZeroedMemoryThatMoves) {
  run_threads(1, [](Communicator& comm) {
    auto region = comm.allocate(10'000);
    ASSERT_TRUE(region);
    EXPECT_EQ(region.bytes(), 10'000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region.data()) % 4096, 0u);
    for (const auto byte : region.span<uint8_t>()) ASSERT_EQ(byte, 0);
    auto* data = region.data();
    SharedRegion moved = std::move(region);
    EXPECT_FALSE(region);  // NOLINT: checks the moved-from object
    EXPECT_EQ(region.bytes(), 0);
    EXPECT_EQ(moved.data(), data);
    EXPECT_EQ(moved.view(Shape{10}, DataType::f32, 40).data(), data + 40);
    expect_refused("f32[2500] from byte 4 on does not fit into a region of 10000 bytes",
                   [&] { moved.view(Shape{2500}, DataType::f32, 4); });
    expect_refused("-1 bytes of memory were asked for; the number must be 0 or more",
                   [&] { comm.allocate(-1); });
    moved = comm.allocate(0);
    EXPECT_EQ(moved.bytes(), 0);
  });
}

// Returns the bytes that a rank copies while `call` runs.
uint64_t copied_by(Communicator& comm, const std::function<void()>& call) {
  comm.barrier_blocking();
  const auto before = comm.statistics().copied_bytes;
  call();
  comm.barrier_blocking();
  return comm.statistics().copied_bytes - before;
}

struct Way {
  const char* name;
  int64_t given, taken;  // in parts, each of which belongs to one of 2 ranks
  bool output_too;       // true if an output in a region saves the copy too
  void (*call)(Communicator&, const char*, ConstTensorView, TensorView);
};
const ReduceOptions kSum{.op = ReduceOp::sum};
const Way kWays[] = {
    {"allreduce", 1, 1, true,
     [](Communicator& c, const char* name, ConstTensorView in, TensorView out) {
       c.allreduce(name, in, out, kSum).wait();
     }},
    {"allreduce blocking", 1, 1, true,
     [](Communicator& c, const char* name, ConstTensorView in, TensorView out) {
       c.allreduce_blocking(name, in, out, ReduceOp::sum);
     }},
    {"reduce", 1, 1, true,
     [](Communicator& c, const char* name, ConstTensorView in, TensorView out) {
       c.reduce(name, in, out).wait();
     }},
    {"broadcast", 1, 1, false,
     [](Communicator& c, const char* name, ConstTensorView in, TensorView out) {
       c.broadcast(name, in, out).wait();
     }},
    {"allgather", 1, 2, false,
     [](Communicator& c, const char* name, ConstTensorView in, TensorView out) {
       c.allgather(name, in, out).wait();
     }},
    {"gather", 1, 2, false,
     [](Communicator& c, const char* name, ConstTensorView in, TensorView out) {
       c.gather(name, in, out).wait();
     }},
    {"scatter", 2, 1, false,
     [](Communicator& c, const char* name, ConstTensorView in, TensorView out) {
       c.scatter(name, in, out).wait();
     }},
    {"reduce_scatter", 2, 1, false,
     [](Communicator& c, const char* name, ConstTensorView in, TensorView out) {
       c.reduce_scatter(name, in, out, kSum).wait();
     }},
    {"alltoall", 2, 2, false,
     [](Communicator& c, const char* name, ConstTensorView in, TensorView out) {
       c.alltoall(name, in, out, {}).wait();
     }},
};

// Checks for every kind that data in a region is not copied through slots, while data in heap
// memory is.
void check_copies(Communicator& comm) {
  constexpr int64_t kCount = 300'000;  // elements of a part: several chunks
  for (const auto& way : kWays) {
    SCOPED_TRACE(way.name);
    const auto in_region = comm.allocate(way.given * kCount * 4),
               out_region = comm.allocate(way.taken * kCount * 4);
    std::vector<float> in_heap(static_cast<size_t>(way.given * kCount), 1.0f),
        out_heap(static_cast<size_t>(way.taken * kCount));
    const auto shape = [](int64_t parts) { return Shape{parts * kCount}; };
    const auto input = in_region.view(shape(way.given), DataType::f32),
               output = out_region.view(shape(way.taken), DataType::f32);
    std::memcpy(input.data(), in_heap.data(), static_cast<size_t>(input.bytes()));
    const auto plain =
        copied_by(comm, [&] { way.call(comm, way.name, ConstTensorView(in_heap), out_heap); });
    const auto direct = copied_by(comm, [&] {
      way.call(comm, way.name, input, way.output_too ? output : TensorView(out_heap));
    });
    const auto both = copied_by(comm, [&] { way.call(comm, way.name, input, output); });
    uint64_t all[3] = {plain, direct, both};
    comm.allreduce("copied", std::span(all), ReduceOp::sum).wait();
    EXPECT_GE(all[0], static_cast<uint64_t>(kCount * 4)) << "through slots";
    EXPECT_EQ(all[1], 0u);
    EXPECT_EQ(all[2], 0u);
  }
}

TEST(SharedRegion, NothingOfItGoesThroughSlots) { run_threads(2, check_copies, over("memory")); }
TEST(SharedRegion, NothingOfItGoesThroughSlotsOfProcesses) {
  run_processes(2, check_copies, over("shm"));
}

// The ranks of an allreduce have their tensors in heap memory, in a region or in an arena.
TEST(SharedRegion, RanksNeedNotAskAlike) {
  run_threads(
      3,
      [](Communicator& comm) {
        for (const int64_t count : {1, 2'000, 100'000, 1'000'000})
          for (const bool blocking : {false, true})
            for (int others = 0; others < 3; ++others) {
              SCOPED_TRACE(count);
              const auto region = comm.allocate(count * 4);
              std::vector<float> heap(static_cast<size_t>(count));
              TensorView view(heap);
              if (comm.rank() != others) view = region.view(Shape{count}, DataType::f32);
              std::fill_n(view.as<float>(), count, static_cast<float>(comm.rank() + 1));
              for (int i = 0; i < 2; ++i)
                if (blocking)
                  comm.allreduce_blocking("x", view, ReduceOp::max);
                else
                  comm.allreduce("x", view, ReduceOp::max).wait();
              for (int64_t i = 0; i < count; ++i) ASSERT_EQ(view.as<float>()[i], 3.0f);
            }
        still_works(comm);
      },
      over("memory"));
}

TEST(SharedRegion, OtherBackendsGiveOrdinaryMemory) {
  run_threads(
      2,
      [](Communicator& comm) {
        const auto region = comm.allocate(400'000);
        EXPECT_EQ(region.handle().kind, RegionHandle::Kind::none);
        auto values = region.span<float>();
        std::fill(values.begin(), values.end(), 1.0f);
        comm.allreduce("x", values, ReduceOp::sum).wait();
        EXPECT_EQ(values[99'999], 2.0f);
      },
      over("tcp"));
}

TEST(SharedRegion, FreedInUseIsAnErrorOfItsRankAlone) {
  for (const char* backend : {"memory", "tcp"})
    run_threads(
        2,
        [](Communicator& comm) {
          constexpr int64_t kCount = 200'000;
          std::vector<float> all(2 * kCount);
          if (comm.rank() == 0) {
            Work work;
            {
              auto region = comm.allocate(kCount * 4);
              std::fill_n(region.span<float>().begin(), kCount, 5.0f);
              work = comm.allgather("x", region.view(Shape{kCount}, DataType::f32), all);
            }
            comm.barrier("it is freed").wait();
            expect_error(
                ErrorCode::invalid_argument,
                "\"x\": rank 0 freed the SharedRegion in which its tensor lies before the Work was "
                "done; wait for the Work first. The other ranks received what the memory held",
                [&] { work.wait(); });
          } else {
            comm.barrier("it is freed").wait();
            comm.allgather("x", ConstTensorView(std::vector<float>(kCount, 6.0f)), all).wait();
            EXPECT_EQ(all[0], 5.0f);
            EXPECT_EQ(all[kCount - 1], 5.0f);
            EXPECT_EQ(all[kCount], 6.0f);
          }
          still_works(comm);
        },
        over(backend));
}

// A region is freed after its Work, with nothing pending. The other rank need not know, and the
// next allocation reuses the memory.
TEST(SharedRegion, FreedAndHadAgain) {
  run_threads(
      2,
      [](Communicator& comm) {
        for (int round = 0; round < 50; ++round) {
          const auto region = comm.allocate(1 << 20);
          auto values = region.span<float>();
          ASSERT_EQ(values[7], 0.0f) << "it is zeroed again";
          std::fill(values.begin(), values.end(), 1.0f);
          comm.allreduce("x", values, ReduceOp::sum).wait();
          ASSERT_EQ(values[7], 2.0f);
        }
      },
      over("memory"));
}

TEST(SharedRegion, MayOutliveItsCommunicator) {
  SharedRegion kept;
  run_threads(1, [&](Communicator& comm) {
    kept = comm.allocate(4096);
    kept.span<int>()[3] = 7;
    comm.close();
  });
  EXPECT_EQ(kept.span<int>()[3], 7);
  kept = SharedRegion();
}

TEST(SharedRegion, AForkLeavesItAlone) {
  run_processes(
      2,
      [](Communicator& comm) {
        auto region = comm.allocate(1 << 20);
        auto values = region.span<float>();
        std::fill(values.begin(), values.end(), 1.0f);
        const pid_t child = ::fork();
        if (child == 0) {
          region = SharedRegion();
          ::_exit(0);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        comm.allreduce("x", values, ReduceOp::sum).wait();
        EXPECT_EQ(values[1000], 2.0f);
      },
      over("shm"));
}

// A process that has the descriptor maps the same memory.
TEST(SharedRegion, ItsHandleCanBeMapped) {
  run_processes(
      2,
      [](Communicator& comm) {
        const auto first = comm.allocate(5'000), region = comm.allocate(10'000);
        const auto handle = region.handle();
        ASSERT_EQ(handle.kind, RegionHandle::Kind::file);
        EXPECT_GE(handle.bytes, 10'000u);
        region.span<int>()[11] = 42;
        void* mapped = ::mmap(nullptr, handle.bytes, PROT_READ, MAP_SHARED, handle.descriptor,
                              static_cast<off_t>(handle.offset));
        ASSERT_NE(mapped, MAP_FAILED);
        EXPECT_EQ(static_cast<int*>(mapped)[11], 42);
        ::munmap(mapped, handle.bytes);
        comm.barrier_blocking();
      },
      over("shm"));
  run_threads(
      2,
      [](Communicator& comm) {
        const auto region = comm.allocate(100);
        const auto handle = region.handle();
        ASSERT_EQ(handle.kind, RegionHandle::Kind::address);
        EXPECT_EQ(handle.offset, reinterpret_cast<uintptr_t>(region.data()));
      },
      over("memory"));
}

}  // namespace
}  // namespace tutti
