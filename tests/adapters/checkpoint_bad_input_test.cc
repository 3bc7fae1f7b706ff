// Checkpoints that cannot be written, or that are damaged: the error is one line that names the
// rank, the tensor, the expected value and the value found. Nothing is changed.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/adapters/checkpoint_state.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"

namespace tutti {
namespace {

using test::CheckpointState;
using test::expect_error;
namespace fs = std::filesystem;

class CheckpointBadInput : public testing::Test {
 protected:
  void SetUp() override { save_whole(1); }
  void save_whole(int64_t step) const {
    const auto body = [&](Communicator& comm) {
      CheckpointState state(comm);
      state.fill(step);
      CheckpointFolder(comm, folder()).save(step, state.placed());
    };
    test::run_threads(3, body);
  }
  /// Expects that loading throws `text` on all ranks, and leaves the tensors unchanged.
  void refuses_to_load(ErrorCode code, const std::string& text, const LoadOptions& options = {},
                       const std::function<void(std::vector<PlacedTensor>&)>& change = {}) const {
    const auto body = [&](Communicator& comm) {
      CheckpointState state(comm);
      state.fill(50);
      auto placed = state.placed();
      if (change) change(placed);
      expect_error(code, text, [&] { CheckpointFolder(comm, folder()).load(placed, options); });
      EXPECT_EQ(state.wrong(50), "");
    };
    test::run_threads(2, body);
  }
  /// Expects that saving throws `text` on all ranks, and the checkpoint of step 1 is still the
  /// newest.
  void refuses_to_save(ErrorCode code, const std::string& text,
                       const std::function<void(int, std::vector<PlacedTensor>&)>& change = {},
                       int64_t step = 2) const {
    const auto body = [&](Communicator& comm) {
      CheckpointState state(comm);
      state.fill(step);
      auto placed = state.placed();
      if (change) change(comm.rank(), placed);
      CheckpointFolder checkpoints(comm, folder());
      expect_error(code, text, [&] { checkpoints.save(step, placed); });
      // An error in the background is thrown by wait().
      checkpoints.save_in_background(step, placed);
      expect_error(code, text, [&] { checkpoints.wait(); });
    };
    test::run_threads(3, body);
    loads(1);
  }
  void loads(int64_t step) const {
    const auto body = [&](Communicator& comm) {
      CheckpointState state(comm);
      EXPECT_EQ(CheckpointFolder(comm, folder()).load(state.placed())->step, step);
      EXPECT_EQ(state.wrong(step), "");
    };
    test::run_threads(2, body);
  }
  std::string folder() const { return scratch_.path() + "/checkpoints"; }
  std::string file(const std::string& name) const { return folder() + "/step-1/" + name; }
  static void flip(const std::string& file, int64_t at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(at);
    const auto byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(at);
    stream.put(byte);
  }

 private:
  const test::ScratchFolder scratch_;
};

TEST_F(CheckpointBadInput, OfAnotherModel) {
  refuses_to_load(ErrorCode::corrupt_data, "is of another model: \"x\" is not in it", {},
                  [](auto& placed) { placed[0].name = "x"; });
  refuses_to_load(ErrorCode::corrupt_data, "\"w\" is f32[7,3] there, expected f32[3,7]", {},
                  [](auto& placed) {
                    placed[0].placement.shape = Shape{3, 7};
                  });
  refuses_to_load(ErrorCode::corrupt_data,
                  "\"few\" is in it, and nobody asked for it; to leave it out set partly", {},
                  [](auto& placed) { placed.pop_back(); });
}

TEST_F(CheckpointBadInput, OneBadByte) {
  const auto data = file("rank-00002.safetensors");
  const auto last = static_cast<int64_t>(fs::file_size(data)) - 1;
  flip(data, last);
  refuses_to_load(ErrorCode::corrupt_data, "rank-00002.safetensors\" have checksum ");
  refuses_to_load(ErrorCode::corrupt_data, "; load an older step");
  flip(data, last);
  loads(1);
  const auto manifest = file("manifest.json");
  flip(manifest, static_cast<int64_t>(fs::file_size(manifest)) / 2);
  refuses_to_load(ErrorCode::corrupt_data, "its manifest ");
}

TEST_F(CheckpointBadInput, HalfOfOne) {
  const auto data = file("rank-00001.safetensors");
  const auto bytes = fs::file_size(data);
  fs::resize_file(data, bytes / 2);
  refuses_to_load(ErrorCode::corrupt_data, "bytes, expected " + std::to_string(bytes));
  fs::remove(data);
  refuses_to_load(ErrorCode::io, "cannot open \"" + data + "\": No such file");
  fs::remove(file("manifest.json"));
  refuses_to_load(ErrorCode::io, "cannot open");
  fs::create_directory(file("manifest.json"));
  refuses_to_load(ErrorCode::corrupt_data, "manifest.json\" is not a plain file");
}

TEST_F(CheckpointBadInput, AStepThatIsNotThere) {
  save_whole(7);
  refuses_to_load(ErrorCode::io, "there is no step 6; there are steps 1, 7", {.step = 6});
}

TEST_F(CheckpointBadInput, RanksThatSaveDifferentThings) {
  refuses_to_save(ErrorCode::mismatch,
                  "ranks save different things: expected \"half\" bf16[33] as rank 0, got \"none\" "
                  "f32[0,4] on rank 1",
                  [](int rank, auto& placed) {
                    if (rank == 1) placed.erase(placed.begin() + 2);
                  });
  refuses_to_save(ErrorCode::mismatch, "got nothing more on rank 1", [](int rank, auto& placed) {
    if (rank == 1) placed.pop_back();
  });
  refuses_to_save(ErrorCode::duplicate_name, "two tensors of the checkpoint are named \"w\"",
                  [](int rank, auto& placed) {
                    if (rank == 2) placed[1].name = "w";
                  });
  test::run_threads(2, [&](Communicator& comm) {
    CheckpointState state(comm);
    CheckpointFolder checkpoints(comm, folder());
    const bool is_odd = comm.rank() == 1;
    expect_error(ErrorCode::mismatch,
                 "expected word \"sampler\"=\"3 of 9\" as rank 0, got word "
                 "\"sampler\"=\"4 of 9\" on rank 1",
                 [&] {
                   checkpoints.save(2, state.placed(), {{"sampler", is_odd ? "4 of 9" : "3 of 9"}});
                 });
  });
  loads(1);
}

// The test plays rank 1: it sends the messages of a rank whose host has a separate folder of the
// same name.
TEST_F(CheckpointBadInput, AFolderThatIsAnotherOneOnAnotherHost) {
  test::run_threads(2, [&](Communicator& comm) {
    std::vector<float> values(4);
    if (comm.rank() == 0) {
      CheckpointFolder checkpoints(comm, folder());
      expect_error(ErrorCode::io,
                   "rank 0: the part of rank 1 is not in \"" + folder() + "/.step-2.", [&] {
                     checkpoints.save(2, {{"w", values, {Shape{4}}}});
                   });
      return;
    }
    const std::string plan = "+step 2\n\"w\" f32[4]", report(2 * sizeof(uint64_t), '\0');
    int number = 0;
    for (const auto& [phase, text] :
         {std::pair{"plan", plan}, {"begin", "+"}, {"parts", "+" + report}, {"end", "+"}})
      comm.allgather_bytes(fmt::format("checkpoint {} {} {}", folder(), phase, ++number),
                           std::as_bytes(std::span<const char>(text)));
  });
  loads(1);
}

TEST_F(CheckpointBadInput, TensorsThatCannotBeSaved) {
  refuses_to_save(ErrorCode::invalid_argument,
                  "checkpoint \"" + folder() + "\": rank 1: \"table\" is placed as part 0 of 3",
                  [](int rank, auto& placed) {
                    if (rank == 1) placed[1].placement.axis_index = 0;
                  });
  refuses_to_save(ErrorCode::invalid_argument,
                  "\"w\" is a partial sum, of which no rank has the whole; reduce it first",
                  [](int, auto& placed) { placed[0].placement.held = Held::partial_sum; });
  refuses_to_save(ErrorCode::invalid_argument,
                  "\"table\" has 1001 elements here, expected 334 by its placement",
                  [](int rank, auto& placed) {
                    if (rank == 0)
                      placed[1].here =
                          TensorView(placed[1].here.data(), Shape{1001}, DataType::f32);
                  });
  refuses_to_save(ErrorCode::invalid_argument,
                  "\"__metadata__\" is not a name for a tensor in a checkpoint",
                  [](int, auto& placed) { placed[0].name = "__metadata__"; });
  const int64_t strides[] = {1, 7};
  refuses_to_save(
      ErrorCode::invalid_argument,
      "\"w\" is not row-major, and only such tensors can be saved and loaded; copy it",
      [&](int, auto& placed) { placed[0].here = placed[0].here.with_strides(strides); });
  refuses_to_save(ErrorCode::invalid_argument, "a step below 0", {}, -2);
  refuses_to_save(ErrorCode::invalid_argument, "a checkpoint's names and words must be UTF-8",
                  [](int, auto& placed) { placed[0].name = "\xff"; });
}

TEST_F(CheckpointBadInput, AFolderThatCannotBeRenamed) {
  std::ofstream(folder() + "/step-2") << "in the way";
  const auto body = [&](Communicator& comm) {
    CheckpointState state(comm);
    CheckpointFolder checkpoints(comm, folder());
    expect_error(ErrorCode::io, "rank 0: cannot rename \"" + folder() + "/.step-2.",
                 [&] { checkpoints.save(2, state.placed()); });
  };
  test::run_threads(3, body);
  fs::remove(folder() + "/step-2");
  loads(1);
  // Only the lock and the checkpoint remain; there is no draft.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder()), {}), 2);
}

TEST_F(CheckpointBadInput, AFolderThatCannotBeMade) {
  const auto in_the_way = folder() + "/file";
  std::ofstream(in_the_way.c_str()) << "in the way";
  const auto body = [&](Communicator& comm) {
    CheckpointState state(comm);
    CheckpointFolder checkpoints(comm, in_the_way + "/checkpoints");
    expect_error(ErrorCode::io, "cannot make \"" + in_the_way,
                 [&] { checkpoints.save(2, state.placed()); });
  };
  test::run_threads(2, body);
  expect_error(ErrorCode::invalid_argument, ": keep is 0, expected at least 1", [&] {
    test::run_threads(1, [](Communicator&) {});
    auto comm = Communicator::create({});
    CheckpointFolder(*comm, folder(), {.keep = 0});
  });
}

TEST_F(CheckpointBadInput, AnotherProcessThatWritesThere) {
  {
    const auto file = folder() + "/.lock";
    const int other = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(::flock(other, LOCK_EX), 0);
    refuses_to_save(ErrorCode::io, "another process (" + std::to_string(::getpid()) +
                                       ") is writing into \"" + folder() + "\"");
    ::close(other);
  }
  save_whole(2);
  loads(2);
}

// The file size limit applies to one rank's process, like a full disk on one host.
TEST(CheckpointFullDisk, NamesRankTensorAndFile) {
  const test::ScratchFolder scratch;
  const auto body = [&](Communicator& comm) {
    CheckpointState state(comm);
    CheckpointFolder checkpoints(comm, scratch.path());
    state.fill(1);
    checkpoints.save(1, state.placed());
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    for (rlim_t most = 300; most < 1600; most += 260) {
      const rlimit limit{most, before.rlim_max};
      if (comm.rank() == 1) ::setrlimit(RLIMIT_FSIZE, &limit);
      expect_error(ErrorCode::io, "rank 1: ", [&] { checkpoints.save(2, state.placed()); });
      if (comm.rank() == 1) ::setrlimit(RLIMIT_FSIZE, &before);
    }
    const rlimit limit{700, before.rlim_max};
    if (comm.rank() == 1) ::setrlimit(RLIMIT_FSIZE, &limit);
    expect_error(ErrorCode::io, "rank 1: \"table\": cannot write \"" + scratch.path(),
                 [&] { checkpoints.save(2, state.placed()); });
    if (comm.rank() == 1) ::setrlimit(RLIMIT_FSIZE, &before);
    state.fill(9);
    EXPECT_EQ(checkpoints.load(state.placed())->step, 1);
    EXPECT_EQ(state.wrong(1), "");
  };
  test::run_processes(3, body);
}

}  // namespace
}  // namespace tutti
