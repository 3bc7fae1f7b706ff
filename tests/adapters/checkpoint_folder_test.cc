// Checkpoints of several ranks can be loaded bit by bit on any number of ranks and in any
// placement. The newest one is found, old ones are removed, and other programs can read the files.

#include "tutti/adapters/checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/adapters/checkpoint_state.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/kernels/convert.h"

namespace tutti {
namespace {

using test::CheckpointState;
using testing::ElementsAre;
namespace fs = std::filesystem;

void saves(const std::string& folder, int64_t step, bool divided = true) {
  const auto body = [&](Communicator& comm) {
    CheckpointState state(comm, divided);
    state.fill(step);
    CheckpointFolder(comm, folder).save(step, state.placed(), {{"sampler", "3 of 9"}});
  };
  test::run_threads(4, body);
}

TEST(CheckpointFolder, ComesBackOnAnyNumberOfRanksInAnyPlacement) {
  for (const bool divided : {true, false}) {
    const test::ScratchFolder scratch;
    saves(scratch.path(), 12, divided);
    for (const int size : {1, 2, 3, 4, 6})
      for (const bool divided_then : {true, false}) {
        const auto body = [&](Communicator& comm) {
          CheckpointState state(comm, divided_then);
          const auto loaded = CheckpointFolder(comm, scratch.path()).load(state.placed());
          ASSERT_TRUE(loaded.has_value());
          EXPECT_EQ(loaded->step, 12);
          EXPECT_EQ(loaded->members, 4);
          EXPECT_EQ(loaded->words.at("sampler"), "3 of 9");
          EXPECT_EQ(state.wrong(12), "");
        };
        test::run_threads(size, body);
      }
  }
}

// Each rank has its own values, as momenta are between exchanges.
TEST(CheckpointFolder, WhatEachRankHasOfItsOwnComesBackOrItsMean) {
  const test::ScratchFolder scratch;
  struct Own {
    std::vector<float> wide = std::vector<float>(6);
    std::vector<BFloat16> narrow = std::vector<BFloat16>(2);
    std::vector<int64_t> steps = std::vector<int64_t>(1);
    std::vector<PlacedTensor> placed(const Communicator& comm) {
      const auto place = [&](const Shape& shape) {
        return Placement{shape, Held::own, comm.size(), comm.rank()};
      };
      return {{"wide", TensorView(wide.data(), Shape{2, 3}, DataType::f32), place({2, 3})},
              {"narrow", narrow, place({2})},
              {"steps", steps, place({1})}};
    }
  };
  test::run_threads(3, [&](Communicator& comm) {
    Own own;
    for (size_t i = 0; i < 6; ++i)
      own.wide[i] = static_cast<float>(comm.rank() * 10) + 0.1F * static_cast<float>(i);
    own.narrow.assign(2, to_bfloat16(static_cast<float>(comm.rank())));
    own.steps[0] = 5 + comm.rank();
    CheckpointFolder(comm, scratch.path()).save(1, own.placed(comm));
  });
  for (const int size : {1, 2, 3, 4})
    test::run_threads(size, [&](Communicator& comm) {
      Own own;
      CheckpointFolder(comm, scratch.path()).load(own.placed(comm));
      const float mean = size == 3 ? static_cast<float>(comm.rank()) : 1;
      for (size_t i = 0; i < 6; ++i)
        EXPECT_FLOAT_EQ(own.wide[i], mean * 10 + 0.1F * static_cast<float>(i)) << size;
      EXPECT_EQ(to_float(own.narrow[1]), mean);
      EXPECT_EQ(own.steps[0], 5 + comm.rank() % 3);
    });
  test::run_threads(2, [&](Communicator& comm) {
    std::vector<float> wide(6);
    const Shape shape{3, 2};
    test::expect_error(ErrorCode::corrupt_data, "\"wide\" is f32[3,2,3] there, expected f32[3,2]",
                       [&] {
                         CheckpointFolder(comm, scratch.path())
                             .load({{"wide",
                                     TensorView(wide.data(), shape, DataType::f32),
                                     {shape, Held::own, comm.size(), comm.rank()}}},
                                   {.partly = true});
                       });
  });
}

TEST(CheckpointFolder, EachRankWritesItsShareOfWhatAllHold) {
  const test::ScratchFolder scratch;
  const auto body = [&](Communicator& comm) {
    std::vector<float> values(100'003, 1.5F);
    CheckpointFolder(comm, scratch.path())
        .save(1, {{"w", values, {Shape{100'003}, Held::replicated}}});
  };
  test::run_threads(3, body);
  for (const char* rank : {"0", "1", "2"}) {
    const auto bytes = fs::file_size(scratch.path() + "/step-1/rank-0000" + rank + ".safetensors");
    EXPECT_NEAR(static_cast<double>(bytes), 400'012.0 / 3, 300) << rank;
  }
}

TEST(CheckpointFolder, TheNewestIsFoundAndOldOnesAreKeptByCount) {
  const test::ScratchFolder scratch;
  const auto folder = scratch.path() + "/made/by/it";
  const auto body = [&](Communicator& comm) {
    CheckpointState state(comm);
    CheckpointFolder checkpoints(comm, folder, {.keep = 3});
    EXPECT_FALSE(checkpoints.load(state.placed()).has_value());
    for (const int64_t step : {2, 10, 9, 100, 100, 101}) {
      state.fill(step);
      checkpoints.save(step, state.placed());
    }
    comm.barrier_blocking();
    EXPECT_THAT(checkpoints.steps(), ElementsAre(10, 100, 101));
    EXPECT_EQ(checkpoints.load(state.placed())->step, 101);
    EXPECT_EQ(state.wrong(101), "");
    EXPECT_EQ(checkpoints.load(state.placed(), {.step = 10})->step, 10);
    EXPECT_EQ(state.wrong(10), "");
  };
  test::run_threads(2, body);
  // The folder has three checkpoints and the lock.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 4);
}

TEST(CheckpointFolder, WhatIsSavedInTheBackgroundIsTheMomentOfTheCall) {
  const test::ScratchFolder scratch;
  const auto body = [&](Communicator& comm) {
    CheckpointState state(comm);
    CheckpointFolder checkpoints(comm, scratch.path());
    for (int64_t step = 1; step <= 3; ++step) {
      state.fill(step);
      checkpoints.save_in_background(step, state.placed());
      state.fill(step + 1000);  // training and its collectives continue
      EXPECT_EQ(comm.allreduce_blocking("loss", 1.0, ReduceOp::sum), comm.size());
    }
    checkpoints.wait();
    EXPECT_EQ(checkpoints.load(state.placed())->step, 3);
    EXPECT_EQ(state.wrong(3), "");
  };
  test::run_threads(3, body);
}

TEST(CheckpointFolder, StatisticsTellWhatSavingCostARank) {
  const test::ScratchFolder scratch;
  std::atomic<int64_t> written = 0;
  int64_t whole = 0;  // bytes of one checkpoint
  test::run_threads(2, [&](Communicator& comm) {
    const Tensor all(Shape{5}, DataType::f64), part(Shape{3}, DataType::f32);
    const std::vector<PlacedTensor> tensors = {
        {"all", all, {all.shape()}},
        {"part", part, {Shape{6}, Held::divided, comm.size(), comm.rank()}}};
    if (comm.rank() == 0) whole = all.bytes() + 2 * part.bytes();
    CheckpointFolder checkpoints(comm, scratch.path());
    EXPECT_EQ(checkpoints.statistics().saves, 0);
    const auto begin = Clock::now();
    checkpoints.save(1, tensors);
    const auto first = checkpoints.statistics();
    EXPECT_EQ(first.saves, 1);
    EXPECT_GT(first.held_seconds, 0);
    checkpoints.save_in_background(2, tensors);
    checkpoints.wait();
    const auto both = checkpoints.statistics();
    EXPECT_EQ(both.saves, 2);
    EXPECT_EQ(both.bytes, 2 * first.bytes);
    EXPECT_GT(both.held_seconds, first.held_seconds);
    EXPECT_LE(both.held_seconds, std::chrono::duration<double>(Clock::now() - begin).count());
    written += first.bytes;
  });
  EXPECT_EQ(written, whole);
}

TEST(CheckpointFolder, AnyPartOfItLoadsIfAsked) {
  const test::ScratchFolder scratch;
  saves(scratch.path(), 5);
  const auto body = [&](Communicator& comm) {
    CheckpointState state(comm);
    state.placed().resize(2);
    CheckpointFolder(comm, scratch.path()).load(state.placed(), {.partly = true});
    EXPECT_EQ(state.wrong(5), "");
  };
  test::run_threads(2, body);
}

// A separate reader of safetensors, which uses Python's standard library only, combines the parts
// with the help of the manifest.
TEST(CheckpointFolder, OtherProgramsReadTheFiles) {
  const test::ScratchFolder scratch;
  saves(scratch.path(), 7);
  const auto program = scratch.path() + "/read.py";
  std::ofstream(program) << R"py(
import json, struct, sys
folder = sys.argv[1] + "/step-7/"
manifest = json.load(open(folder + "manifest.json"))["checkpoint"]
assert manifest["step"] == 7 and manifest["members"] == 4 and manifest["words"]["sampler"] == "3 of 9"
def read(file):
    raw = open(folder + file, "rb").read()
    length, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: raw[begin + e["data_offsets"][0]:begin + e["data_offsets"][1]]
            for name, e in header.items()}
files = [read(f["name"]) for f in manifest["files"]]
for name, tensor in manifest["tensors"].items():
    whole = b"".join(files[part["file"]][name] for part in tensor["parts"])
    want = bytes((at * 37 + at // 256 + 7 * 101 + len(name)) % 256 for at in range(len(whole)))
    assert whole == want, name
    size = {"F32": 4, "BF16": 2, "I64": 8, "F64": 8}[tensor["dtype"]]
    for extent in tensor["shape"]:
        size *= extent
    assert len(whole) == size, name
)py";
  const auto command = "python3 " + program + " " + scratch.path();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace tutti
