// Checks the rules of the source tree. Includes point only down: the top folders are floors, and
// their subfolders rooms, each with an order. The environment is read in one file. Some rooms use
// no time, thread or lock. A source has at most 600 lines, a folder 25 files and a class 30 fields.
// Comments of the product begin with a subject.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "tests/base/house_rules.h"
#include "tests/support/scratch_folder.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

TEST(Floors, ThisTreeIsSound) {
  const auto report = check_tree(TUTTI_SOURCE_DIR, large_classes());
  EXPECT_GT(report.file_count, 100) << "where are the sources? " << TUTTI_SOURCE_DIR;
  for (const auto& fault : report.faults) ADD_FAILURE() << fault;
  for (const auto& [path, reason] : impure_files())
    EXPECT_TRUE(fs::exists(fs::path(TUTTI_SOURCE_DIR) / path)) << path << " is listed, but gone";
}

// A tree in the temporary folder, with the faults that the test plants.
class PlantedTree : public testing::Test {
 protected:
  void plant(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  Lines faults(std::span<const LargeClass> large_classes = {}) const {
    return check_tree(root_, large_classes).faults;
  }

 private:
  const test::ScratchFolder folder_;
  const fs::path root_ = folder_.path();
};

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(PlantedTree, DownwardIncludesAreSound) {
  plant("base/text.h", "#pragma once\n#include <string>\n");
  plant("kernels/reduce.cc", "#include \"tutti/tensor/dtype.h\"\n#include <hwy/highway.h>\n");
  plant("backends/tcp/tcp.cc",
        "#include \"tutti/backends/tcp/wire.h\"\n#include \"tutti/backends/backend.h\"\n");
  plant("core/engine.cc", "#include <tutti/backends/backend.h>\n");
  plant("adapters/c/tutti.cc", "#include \"tutti.h\"\n#include \"tutti/tutti.h\"\n");
  plant("tests/core/engine_test.cc", "#include \"tests/core/fake.h\"\nauto x = getenv(\"X\");\n");
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(PlantedTree, AnIncludeThatPointsUpIsFound) {
  plant("base/text.cc", "\n#include \"tutti/tensor/dtype.h\"\n");
  plant("core/engine.h", "  #  include <tutti/nn.h>\n");
  plant("backends/shm/shm.cc", "#include \"tutti/tutti.h\"\n");
  plant("kernels/cuda/pack.cu", "#include \"tutti/backends/store.h\"  // why not\n");
  plant("kernels/reduce.cc", "#include \"tutti/adapters/nn/kernels/layer_kernels.h\"\n");
  EXPECT_THAT(faults(),
              ElementsAre("backends/shm/shm.cc:1: include of tutti/tutti.h points up",
                          "base/text.cc:2: include of tutti/tensor/dtype.h points up",
                          "core/engine.h:1: include of tutti/nn.h points up",
                          "kernels/cuda/pack.cu:1: include of tutti/backends/store.h points up",
                          "kernels/reduce.cc:1: include of "
                          "tutti/adapters/nn/kernels/layer_kernels.h points up"));
}

TEST_F(PlantedTree, AnIncludeOfAnotherBackendIsFound) {
  plant("backends/hierarchical/composite.cc", "#include \"tutti/backends/shm/mapping.h\"\n");
  plant("tests/backends/tcp/tcp_test.cc", "#include \"tests/backends/shm/file.h\"\n");
  EXPECT_THAT(faults(),
              ElementsAre("backends/hierarchical/composite.cc:1: include of "
                          "tutti/backends/shm/mapping.h points into another room of backends",
                          "tests/backends/tcp/tcp_test.cc:1: include of "
                          "tests/backends/shm/file.h points into another room of tests/backends"));
}

TEST_F(PlantedTree, AnIncludeThatPointsUpTheRoomsIsFound) {
  plant("adapters/nn/kernels/conv.cc", "#include \"tutti/adapters/nn/layers/layers.h\"\n");
  plant("backends/backend.h", "#include \"tutti/backends/stream/frame.h\"\n");
  plant("base/process/cores.h", "#include \"tutti/base/error.h\"\n");
  plant("backends/shared/pipeline.h", "#include \"tutti/backends/tcp/connector.h\"\n");
  plant("backends/tcp/tcp.h", "#include \"tutti/backends/shared/pipeline.h\"\n");
  plant("core/agreement/plan.h", "#include \"tutti/core/settings/options.h\"\n");
  plant("core/hall/x.h", "#include \"tutti/core/settings/options.h\"\n");
  plant("core/settings/options.h", "#include \"tutti/core/agreement/plan.h\"\n");
  plant("core/calls/state.h", "#include \"tutti/tutti.h\"\n");
  plant("tests/backends/support/world.h", "#include \"tests/backends/conformance/cases.h\"\n");
  plant("tools/bench/main.cc", "#include \"tools/bench/report/plot.h\"\n");
  plant("tools/bench/report/plot.h", "#include \"tools/bench/cases/session.h\"\n");
  EXPECT_THAT(
      faults(),
      ElementsAre(
          "adapters/nn/kernels/conv.cc:1: include of tutti/adapters/nn/layers/layers.h points up "
          "the rooms",
          "backends/backend.h:1: include of tutti/backends/stream/frame.h points up the rooms",
          "backends/shared/pipeline.h:1: include of tutti/backends/tcp/connector.h points up "
          "the rooms",
          "base/process/cores.h:1: include of tutti/base/error.h points up the rooms",
          "core/calls/state.h:1: include of tutti/tutti.h points up the rooms",
          "core/hall/x.h:1: include of tutti/core/settings/options.h stands in no room",
          "core/settings/options.h:1: include of tutti/core/agreement/plan.h points up the "
          "rooms",
          "tests/backends/support/world.h:1: include of tests/backends/conformance/cases.h points "
          "up the rooms",
          "tools/bench/report/plot.h:1: include of tools/bench/cases/session.h points up the "
          "rooms"));
}

TEST_F(PlantedTree, AnIncludeThatHidesItsFloorIsFound) {
  plant("base/a.cc", "#include \"../core/engine.h\"\n");
  plant("base/b.cc", "#include \"tests/x.h\"\n");
  plant("core/c.cc", "#include \"tutti/tools/run.h\"\n");
  EXPECT_THAT(
      faults(),
      ElementsAre("base/a.cc:1: include of ../core/engine.h is not written as tutti/<floor>/<file>",
                  "base/b.cc:1: include of tests/x.h is not written as tutti/<floor>/<file>",
                  "core/c.cc:1: include of tutti/tools/run.h is in no floor"));
}

TEST_F(PlantedTree, TheEnvironmentIsReadInOneFileOnly) {
  plant("core/settings/options.cc", "auto x = std::getenv(\"TUTTI_X\");\n");
  plant("core/engine/run.cc", "// getenv stands in options.cc; the environment is ours.\n");
  plant("backends/store.cc", "\nauto x = std::getenv(\"X\");\n");
  plant("adapters/nn/data.cc", "auto x = secure_getenv(\"X\");\nextern char** environ;\n");
  EXPECT_THAT(
      faults(),
      ElementsAre("adapters/nn/data.cc:1: the environment is read outside core/settings/options.cc",
                  "adapters/nn/data.cc:2: the environment is read outside core/settings/options.cc",
                  "backends/store.cc:2: the environment is read outside core/settings/options.cc"));
}

TEST_F(PlantedTree, ACommentWithoutASubjectIsFound) {
  plant(
      "core/engine/run.cc",
      "// Of a rank, its number.\n\n/// Returns a number.\n/// Of a rank.\nint a;  // What it is\n"
      "int b;  // Offset of it\nconst char* c = \"// Of text\";\n");
  plant("tests/core/run_test.cc", "// Of a test.\n");
  const std::string rule = ": write a sentence with a subject and a verb";
  EXPECT_THAT(faults(),
              ElementsAre("core/engine/run.cc:1: the comment begins with \"Of\"" + rule,
                          "core/engine/run.cc:5: the comment begins with \"What\"" + rule));
}

TEST_F(PlantedTree, AFileOfMoreThan600LinesIsFound) {
  const auto lines = [](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += "//\n";
    return text;
  };
  plant("core/long_enough.cc", lines(600));
  plant("core/too_long.cc", lines(601));
  plant("tests/api/too_long_test.cc", lines(1000));
  EXPECT_THAT(faults(), ElementsAre("core/too_long.cc: 601 lines, more than 600",
                                    "tests/api/too_long_test.cc: 1000 lines, more than 600"));
}

TEST_F(PlantedTree, AFolderOfMoreThan25FilesIsFound) {
  for (int i = 0; i < 26; ++i) {
    const auto name = "file" + std::to_string(i);
    plant("core/watch/" + name + ".cc", "");
    plant("tests/planted/core/" + name + ".patch", "");
    if (i < 25) plant("core/calls/" + name + ".cc", "");
    plant("tests/core/room" + std::to_string(i) + "/" + name + ".cc", "");
  }
  EXPECT_THAT(faults(), ElementsAre("core/watch: 26 files, more than 25: give it rooms",
                                    "tests/planted/core: 26 files, more than 25: give it rooms"));
}

TEST_F(PlantedTree, AClockAThreadOrALockInAPureRoomIsFound) {
  plant("core/agreement/a.h", "#include <mutex>\n#include <string>\n#include <sys/epoll.h>\n");
  plant("core/node/a.cc",
        "thread_local int calls;\n// Clock::now() is the caller's.\nauto now = Clock::now();\n");
  plant("core/node/b.cc",
        "#include \"tutti/base/descriptor.h\"\nauto end = Deadline::after(1);\n"
        "auto now = std::chrono::steady_clock::now();\n");
  plant("core/scheduling/a.cc",
        "#include <thread>\nvoid f() { std::this_thread::sleep_for(second); }\n"
        "auto state = process_state(pid);\n");
  plant("core/scheduling/b.cc",
        "#include <shared_mutex>\n#include <future>\nauto now = std::time(nullptr);\n"
        "void f() { std::this_thread::yield(); }\n");
  plant("core/watch/liveness.cc", "#include <atomic>\n#include <condition_variable>\n");
  const std::string why =
      " in a pure file: it gets the time as a value, and has no thread and no lock";
  EXPECT_THAT(
      faults(),
      ElementsAre(
          "core/agreement/a.h:1: <mutex>" + why, "core/agreement/a.h:3: <sys/epoll.h>" + why,
          "core/node/a.cc:1: thread_local" + why, "core/node/a.cc:3: Clock::now" + why,
          "core/node/b.cc:1: \"tutti/base/descriptor.h\"" + why,
          "core/node/b.cc:2: Deadline::after" + why, "core/node/b.cc:3: steady_clock::now" + why,
          "core/scheduling/a.cc:1: <thread>" + why, "core/scheduling/a.cc:2: sleep_for" + why,
          "core/scheduling/a.cc:3: process_state(" + why,
          "core/scheduling/b.cc:1: <shared_mutex>" + why, "core/scheduling/b.cc:2: <future>" + why,
          "core/scheduling/b.cc:3: std::time(" + why,
          "core/scheduling/b.cc:4: this_thread::yield" + why,
          "core/watch/liveness.cc:1: <atomic>" + why,
          "core/watch/liveness.cc:2: <condition_variable>" + why));
}

TEST_F(PlantedTree, OtherRoomsAndNamedFilesHaveClocksAndLocks) {
  plant("core/engine/engine.h", "#include <mutex>\nauto now = Clock::now();\n");
  plant("core/scheduling/work_state.h", "#include <atomic>\n#include <mutex>\n");
  plant("core/watch/timeline.cc", "auto now = Clock::now();\n");
  plant("core/agreement/a.cc", "Clock::time_point now;\nauto process_states = 1;\n");
  EXPECT_THAT(faults(), IsEmpty());
}

// Returns a class with `count` fields, six to a line.
std::string class_of(int count) {
  std::string text = "class Big {\n  int first_";
  for (int i = 1; i < count; ++i) text += i % 6 == 0 ? ";\n  int x_" : ", x_";
  return text + ";\n};\n";
}

TEST_F(PlantedTree, AClassOfMoreThan30FieldsIsFound) {
  plant("core/engine/large_enough.h", class_of(30));
  plant("core/engine/too_large.h", "\n" + class_of(31));
  plant("tools/run/too_large.cc", class_of(40));
  plant("tests/core/test.h", class_of(50));
  EXPECT_THAT(
      faults(),
      ElementsAre("core/engine/too_large.h:2: Big has 31 fields, more than 30: give it parts",
                  "tools/run/too_large.cc:1: Big has 40 fields, more than 30: give it parts"));
}

TEST_F(PlantedTree, TheListOfLargeClassesOnlyShrinks) {
  constexpr std::array<LargeClass, 5> kListed = {{{"core/as_listed.h", "Big", 33, "?"},
                                                  {"core/fewer.h", "Big", 33, "?"},
                                                  {"core/gone.h", "Big", 33, "?"},
                                                  {"core/more.h", "Big", 33, "?"},
                                                  {"core/small.h", "Big", 33, "?"}}};
  plant("core/as_listed.h", class_of(33));
  plant("core/fewer.h", class_of(32));
  plant("core/gone.h", "class Small {};\n");
  plant("core/more.h", class_of(34));
  plant("core/small.h", class_of(30));
  EXPECT_THAT(
      faults(kListed),
      ElementsAre(
          "core/fewer.h:1: Big has 32 fields, fewer than the 33 listed: list as many",
          "core/gone.h: has no class Big, which the list names as large",
          "core/more.h:1: Big has 34 fields, more than 33: give it parts",
          "core/small.h:1: Big has 30 fields, and is no large class any more: strike it from "
          "the list"));
}

}  // namespace
}  // namespace tutti
