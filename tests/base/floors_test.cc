// Holds the house together: includes point down the floors, and down the rooms of a folder, only;
// the environment is read in one file, some rooms know no time, no thread and no lock, no source
// grows beyond 600 lines, no folder beyond 25 files and no class beyond 30 fields.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/base/class_fields.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

constexpr std::array<std::string_view, 7> kFloors = {"base",     "tensor", "kernels", "collectives",
                                                     "backends", "core",   "adapters"};
constexpr std::array<std::string_view, 5> kBesideTheFloors = {"tools", "tests", "benchmarks",
                                                              "examples", "cmake"};
constexpr size_t kMostLines = 600;
constexpr size_t kMostFiles = 25;
constexpr int kMostFields = 30;
// Where the product's classes are. Tests and what stands beside may have larger ones.
constexpr std::array<std::string_view, 8> kProduct = {
    "base", "tensor", "kernels", "collectives", "backends", "core", "adapters", "tools"};

// Rooms, and files of rooms, that get the time as a value and run in one thread at a time, so that
// a test can drive them through any order of events. A room that is not there yet is pure once it
// is.
constexpr std::array<std::string_view, 6> kPure = {"core/agreement/",      "core/node/",
                                                   "core/scheduling/",     "core/watch/death.",
                                                   "core/watch/liveness.", "core/watch/stall."};
struct Impure {
  std::string_view path;
  std::string_view reason;
};
constexpr std::array<Impure, 1> kImpure = {{
    {"core/scheduling/work_state.h",
     "Threads of the program wait for a Work and read its result: it has a lock and atomics."},
}};

// A class that has more than kMostFields, and how many it has. The list only shrinks: who takes
// fields away writes the lower number, and who reaches kMostFields strikes the line.
struct LargeClass {
  std::string_view path, name;
  int fields;
  std::string_view reason;
};
constexpr std::array<LargeClass, 7> kLargeClasses = {{
    {"backends/shared/pipeline_call.h", "Call", 35,
     "It is all that one collective over shared memory needs; its chunks become a part of their "
     "own."},
    {"backends/ucx/ucx_message.h", "UcxTransfer", 32,
     "It is one transfer of several protocols, whose states share its fields."},
    {"backends/ucx/ucx_transport.h", "UcxTransport", 42,
     "It has all queues of a rank, its peers' and its worker; matching becomes a part of its own."},
    {"core/engine/engine.h", "Engine", 61,
     "It has all threads, locks and turns around a node; these become parts of their own."},
    {"core/scheduling/run.h", "Run", 40,
     "It is an operation of five kinds, which become classes of their own."},
    {"core/scheduling/scheduler.h", "Scheduler", 40,
     "It follows plans and keeps pairs; both become parts of their own."},
    {"core/settings/options.h", "Options", 43, "It is the list of all settings, one field each."},
}};

std::optional<size_t> floor_number(std::string_view folder) {
  const auto found = std::find(kFloors.begin(), kFloors.end(), folder);
  if (found == kFloors.end()) return {};
  return static_cast<size_t>(found - kFloors.begin());
}

// A folder that is cut into rooms, lowest first; "" is its own files. Subfolders that are not named
// are neighbours where there may be any: they stand above all rooms and know nothing of each other.
struct House {
  std::string_view folder;
  std::vector<std::string_view> rooms;
  bool has_neighbours = false;
};

const std::vector<House>& houses() {
  static const std::vector<House> kHouses = {
      {"base", {"process", ""}},
      // The lower rooms hold kernels, which the device launches.
      {"kernels/cuda", {"pack", "flags", "steps", "layers", "libraries", "trainer", "device", ""}},
      {"collectives/algorithms", {""}, true},
      // The contract is backends' own files; the neighbours are backends.
      {"backends", {"", "network", "handshake", "store", "stream", "shared", "device"}, true},
      {"core",
       {"launch", "settings", "agreement", "watch", "scheduling", "node", "engine", "life", ""}},
      // The neighbours are languages and trainers, which may stand on the C interface.
      {"adapters", {"exchange", "sampling", "sharded", "checkpoint", "c", ""}, true},
      {"tools/bench", {"workload", "report", "cases", ""}},
      {"tests/backends", {"support", "conformance", "fake_nccl"}, true},
  };
  return kHouses;
}

// The room of `path` in that house; none if it lies outside.
std::optional<std::string> room_of(const House& house, const std::string& path) {
  const auto folder = std::string(house.folder) + "/";
  if (!path.starts_with(folder)) return {};
  const auto inside = path.substr(folder.size());
  const auto end = inside.find('/');
  return end == std::string::npos ? "" : inside.substr(0, end);
}

// What is wrong with an include of `to` in the file `from`, both by their paths in the tree; empty
// if nothing is.
std::string room_fault(const House& house, const std::string& from, const std::string& to) {
  const auto from_room = room_of(house, from), to_room = room_of(house, to);
  if (!from_room || !to_room || *from_room == *to_room) return "";
  const auto height = [&](const std::string& room) {
    return std::find(house.rooms.begin(), house.rooms.end(), room) - house.rooms.begin();
  };
  const auto top = static_cast<std::ptrdiff_t>(house.rooms.size());
  const auto from_height = height(*from_room), to_height = height(*to_room);
  if (from_height == top && !house.has_neighbours) return "stands in no room";
  if (from_height == top && to_height == top)
    return "points into another room of " + std::string(house.folder);
  return to_height > from_height ? "points up the rooms" : "";
}

// Where in the tree the file lies that sources include by this name.
std::string path_of(const std::string& target) {
  if (target == "tutti/tutti.h") return "core/tutti.h";
  if (target == "tutti/nn.h") return "adapters/nn/nn.h";
  if (target == "tutti.h") return "adapters/c/tutti.h";
  return target.starts_with("tutti/") ? target.substr(6) : target;
}

std::string first_part(const std::string& path) { return path.substr(0, path.find('/')); }

// What is wrong with an include of `target`, named as the source names it, in the floor's file
// `from`; empty if nothing is.
std::string floor_fault(const std::string& from, const std::string& target, bool is_quoted) {
  const auto to = path_of(target);
  if (to == target) return is_quoted ? "is not written as tutti/<floor>/<file>" : "";
  const auto to_floor = floor_number(first_part(to));
  if (!to_floor) return "is in no floor";
  return *to_floor > *floor_number(first_part(from)) ? "points up" : "";
}

std::string include_fault(const std::string& from, const std::string& target, bool is_quoted) {
  std::string fault;
  if (floor_number(first_part(from))) fault = floor_fault(from, target, is_quoted);
  for (const auto& house : houses())
    if (fault.empty()) fault = room_fault(house, from, path_of(target));
  return fault;
}

std::string without_comment(const std::string& line) { return line.substr(0, line.find("//")); }

void check_file(const std::string& name, const Lines& lines, Lines& faults) {
  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)re");
  static const std::regex environment(R"re(\b(secure_)?getenv\b|\benviron\b)re");
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto where = name + ":" + std::to_string(i + 1) + ": ";
    std::smatch match;
    if (std::regex_match(lines[i], match, include)) {
      const auto fault = include_fault(name, match[2], match[1] == "\"");
      if (!fault.empty()) faults.push_back(where + "include of " + match[2].str() + " " + fault);
    }
    if (floor_number(first_part(name)) && name != "core/settings/options.cc" &&
        std::regex_search(without_comment(lines[i]), environment))
      faults.push_back(where + "the environment is read outside core/settings/options.cc");
  }
}

// What a pure file may not name; the first match is shown.
const std::regex& impure() {
  static const std::regex kWords(
      R"re(<(thread|mutex|condition_variable|atomic|sys/[^>]*)>|"[^"]*\bdescriptor\.h"|)re"
      R"re(\b[A-Za-z_]*[Cc]lock::now|\bDeadline::after|\bsleep_for|\bsleep_until|\bthread_local|)re"
      R"re(\bprocess_state\()re");
  return kWords;
}

bool is_pure(std::string_view path) {
  return std::ranges::any_of(kPure, [&](auto begin) { return path.starts_with(begin); }) &&
         std::ranges::none_of(kImpure, [&](const Impure& file) { return file.path == path; });
}

void check_purity(const std::string& name, const Lines& lines, Lines& faults) {
  if (!is_pure(name)) return;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto code = without_comment(lines[i]);
    std::smatch match;
    if (std::regex_search(code, match, impure()))
      faults.push_back(
          name + ":" + std::to_string(i + 1) + ": " + match.str() +
          " in a pure file: it gets the time as a value, and has no thread and no lock");
  }
}

// Counts the fields of a file's classes; `met` are the large classes that were found.
void check_classes(const std::string& name, const Lines& lines,
                   std::span<const LargeClass> large_classes, std::vector<const LargeClass*>& met,
                   Lines& faults) {
  static const std::vector<std::string> kEndings = {".h", ".cc", ".c", ".cu"};
  const auto ending = fs::path(name).extension().string();
  if (std::ranges::count(kProduct, first_part(name)) == 0 ||
      std::ranges::count(kEndings, ending) == 0)
    return;
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  for (const auto& [class_name, line, fields] : test::classes_of(text)) {
    const auto listed = std::ranges::find_if(large_classes, [&](const LargeClass& large) {
      return large.path == name && large.name == class_name;
    });
    const bool is_listed = listed != large_classes.end();
    if (is_listed) met.push_back(&*listed);
    const int most = is_listed ? listed->fields : kMostFields;
    const auto found = name + ":" + std::to_string(line) + ": " + class_name + " has " +
                       std::to_string(fields) + " fields, ";
    if (fields > most)
      faults.push_back(found + "more than " + std::to_string(most) + ": give it parts");
    else if (is_listed && fields <= kMostFields)
      faults.push_back(found + "and is no large class any more: strike it from the list");
    else if (is_listed && fields < most)
      faults.push_back(found + "fewer than the " + std::to_string(most) + " listed: list as many");
  }
}

bool is_source(const fs::path& path) {
  static const std::vector<std::string> kEndings = {".h",  ".cc",    ".c",  ".cu",
                                                    ".in", ".cmake", ".sh", ".txt"};
  return std::find(kEndings.begin(), kEndings.end(), path.extension()) != kEndings.end();
}

Lines read_lines(const fs::path& path) {
  std::ifstream file(path);
  Lines lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

struct Report {
  int file_count = 0;
  Lines faults;
};

Report check_tree(const fs::path& root, std::span<const LargeClass> large_classes) {
  Report report;
  std::vector<const LargeClass*> met;
  std::map<std::string, size_t> files_in;
  std::vector<std::string_view> folders(kFloors.begin(), kFloors.end());
  folders.insert(folders.end(), kBesideTheFloors.begin(), kBesideTheFloors.end());
  for (const auto folder : folders) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file()) continue;
      const auto relative = fs::relative(entry.path(), root);
      ++files_in[relative.parent_path().string()];
      if (!is_source(entry.path())) continue;
      ++report.file_count;
      const auto lines = read_lines(entry.path());
      if (lines.size() > kMostLines)
        report.faults.push_back(relative.string() + ": " + std::to_string(lines.size()) +
                                " lines, more than " + std::to_string(kMostLines));
      check_file(relative.string(), lines, report.faults);
      check_purity(relative.string(), lines, report.faults);
      check_classes(relative.string(), lines, large_classes, met, report.faults);
    }
  }
  for (const auto& [folder, count] : files_in)
    if (count > kMostFiles)
      report.faults.push_back(folder + ": " + std::to_string(count) + " files, more than " +
                              std::to_string(kMostFiles) + ": give it rooms");
  for (const auto& large : large_classes)
    if (std::ranges::count(met, &large) == 0)
      report.faults.push_back(std::string(large.path) + ": has no class " +
                              std::string(large.name) + ", which the list names as large");
  std::sort(report.faults.begin(), report.faults.end());
  return report;
}

TEST(Floors, ThisTreeIsSound) {
  const auto report = check_tree(TUTTI_SOURCE_DIR, kLargeClasses);
  EXPECT_GT(report.file_count, 100) << "where are the sources? " << TUTTI_SOURCE_DIR;
  for (const auto& fault : report.faults) ADD_FAILURE() << fault;
  for (const auto& [path, reason] : kImpure)
    EXPECT_TRUE(fs::exists(fs::path(TUTTI_SOURCE_DIR) / path)) << path << " is listed, but gone";
}

// A tree of its own in the temporary folder, with the faults that the test plants.
class PlantedTree : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "floors_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void plant(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  Lines faults(std::span<const LargeClass> large_classes = {}) const {
    return check_tree(root_, large_classes).faults;
  }

 private:
  fs::path root_;
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
  plant("kernels/layers/conv.cu", "#include \"tutti/backends/store.h\"  // why not\n");
  EXPECT_THAT(faults(),
              ElementsAre("backends/shm/shm.cc:1: include of tutti/tutti.h points up",
                          "base/text.cc:2: include of tutti/tensor/dtype.h points up",
                          "core/engine.h:1: include of tutti/nn.h points up",
                          "kernels/layers/conv.cu:1: include of tutti/backends/store.h points up"));
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
  plant("backends/backend.h", "#include \"tutti/backends/stream/frame.h\"\n");
  plant("base/process/cores.h", "#include \"tutti/base/error.h\"\n");
  plant("backends/shared/pipeline.h", "#include \"tutti/backends/tcp/connector.h\"\n");
  plant("backends/tcp/tcp.h", "#include \"tutti/backends/shared/pipeline.h\"\n");
  plant("core/agreement/plan.h", "#include \"tutti/core/settings/options.h\"\n");
  plant("core/hall/x.h", "#include \"tutti/core/settings/options.h\"\n");
  plant("core/settings/options.h", "#include \"tutti/core/agreement/plan.h\"\n");
  plant("core/life/state.h", "#include \"tutti/tutti.h\"\n");
  plant("tests/backends/support/world.h", "#include \"tests/backends/conformance/cases.h\"\n");
  plant("tools/bench/main.cc", "#include \"tools/bench/report/plot.h\"\n");
  plant("tools/bench/report/plot.h", "#include \"tools/bench/cases/session.h\"\n");
  EXPECT_THAT(
      faults(),
      ElementsAre(
          "backends/backend.h:1: include of tutti/backends/stream/frame.h points up the rooms",
          "backends/shared/pipeline.h:1: include of tutti/backends/tcp/connector.h points up "
          "the rooms",
          "base/process/cores.h:1: include of tutti/base/error.h points up the rooms",
          "core/hall/x.h:1: include of tutti/core/settings/options.h stands in no room",
          "core/life/state.h:1: include of tutti/tutti.h points up the rooms",
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
    if (i < 25) plant("core/life/" + name + ".cc", "");
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

// `count` fields, six a line.
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
