#include "tests/base/house_rules.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <regex>

#include "tests/base/class_fields.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 7> kFloors = {"base",     "tensor", "kernels", "collectives",
                                                     "backends", "core",   "adapters"};
constexpr std::array<std::string_view, 5> kBesideTheFloors = {"tools", "tests", "benchmarks",
                                                              "examples", "cmake"};
constexpr size_t kMostLines = 600;
constexpr size_t kMostFiles = 25;
constexpr int kMostFields = 30;
// Only these folders, which hold the product's classes, have a limit of fields.
constexpr std::array<std::string_view, 8> kProduct = {
    "base", "tensor", "kernels", "collectives", "backends", "core", "adapters", "tools"};

// Rooms (subfolders), or files of them, that get the time as a value and run in one thread at a
// time. So a test can drive them through any order of events. The rule also holds for a listed room
// that does not exist yet.
constexpr std::array<std::string_view, 6> kPure = {"core/agreement/",      "core/node/",
                                                   "core/scheduling/",     "core/watch/death.",
                                                   "core/watch/liveness.", "core/watch/stall."};
constexpr std::array<ImpureFile, 2> kImpure = {{
    {"core/scheduling/completion.h",
     "Threads that finish a Work and threads that wait for it meet here: it has a lock and "
     "atomics."},
    {"core/scheduling/work_state.h",
     "Threads of the program wait for a Work and read its result: it has a lock and atomics."},
}};

constexpr std::array<LargeClass, 3> kLargeClasses = {{
    {"backends/ucx/ucx_message.h", "UcxTransfer", 32,
     "It is one transfer of several protocols, whose states share its fields."},
    {"backends/ucx/ucx_transport.h", "UcxTransport", 42,
     "It has all queues of a rank, its peers' and its worker; matching becomes a part of its own."},
    {"core/settings/options.h", "Options", 43, "It is the list of all settings, one field each."},
}};

std::optional<size_t> floor_number(std::string_view folder) {
  const auto found = std::find(kFloors.begin(), kFloors.end(), folder);
  if (found == kFloors.end()) return {};
  return static_cast<size_t>(found - kFloors.begin());
}

// A folder that is divided into rooms (subfolders), lowest first. "" stands for its own files. If
// has_neighbours is set, other subfolders are allowed. They stand above all rooms and may not
// include each other.
struct House {
  std::string_view folder;
  std::vector<std::string_view> rooms;
  bool has_neighbours = false;
};

const std::vector<House>& houses() {
  static const std::vector<House> kHouses = {
      {"base", {"process", ""}},
      // The lower rooms hold kernels, which the device launches.
      {"kernels/cuda", {"pack", "flags", "device", ""}},
      {"collectives/algorithms", {""}, true},
      // The folder's own files are the contract; the neighbours are the backends.
      {"backends",
       {"", "network", "handshake", "store", "stream", "order", "shared", "device"},
       true},
      {"core",
       {"launch", "settings", "agreement", "watch", "threads", "scheduling", "node", "engine",
        "meeting", "calls", "membership", ""}},
      // The neighbours are languages and trainers, which may use the C interface.
      {"adapters", {"exchange", "sampling", "sharded", "checkpoint", "c", ""}, true},
      {"adapters/nn", {"kernels", "layers", "steps", ""}},
      {"adapters/nn/kernels/cuda", {"steps", "layers", "libraries", "trainer", ""}},
      {"tools/bench", {"workload", "report", "cases", ""}},
      {"tests/backends", {"support", "conformance", "fake_nccl"}, true},
  };
  return kHouses;
}

// Returns the room of `path` in that house, or nothing if it lies outside.
std::optional<std::string> room_of(const House& house, const std::string& path) {
  const auto folder = std::string(house.folder) + "/";
  if (!path.starts_with(folder)) return {};
  const auto inside = path.substr(folder.size());
  const auto end = inside.find('/');
  return end == std::string::npos ? "" : inside.substr(0, end);
}

// Returns the rule that the file `from` breaks when it includes `to`, or "". Both are paths in the
// tree.
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

// Returns the path in the tree of the file that sources include as `target`.
std::string path_of(const std::string& target) {
  if (target == "tutti/tutti.h") return "core/tutti.h";
  if (target == "tutti/nn.h") return "adapters/nn/nn.h";
  if (target == "tutti.h") return "adapters/c/tutti.h";
  return target.starts_with("tutti/") ? target.substr(6) : target;
}

std::string first_part(const std::string& path) { return path.substr(0, path.find('/')); }

// Returns the rule that the file `from` breaks when it includes `target`, written as in the source,
// or "".
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

// Reports comments that begin with these words, because they have no subject or no verb. Only the
// first line of a block of comments is checked.
void check_comments(const std::string& name, const Lines& lines, Lines& faults) {
  static const std::regex comment(R"re((?:^|[^:"])///?<? *(.*))re");
  static const std::regex headless(R"re((Of|What|Where|That|Those|Who|Which)\b.*)re");
  if (std::ranges::count(kProduct, first_part(name)) == 0) return;
  bool was_comment = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    const bool is_comment = std::regex_search(lines[i], match, comment);
    const std::string text = is_comment ? match[1].str() : "";
    const bool goes_on =
        was_comment && without_comment(lines[i]).find_first_not_of(' ') == std::string::npos;
    if (is_comment && !goes_on && std::regex_match(text, headless))
      faults.push_back(name + ":" + std::to_string(i + 1) + ": the comment begins with \"" +
                       text.substr(0, text.find(' ')) +
                       "\": write a sentence with a subject and a verb");
    was_comment = is_comment;
  }
}

// A pure file may contain none of these; the first match is reported.
const std::regex& impure() {
  static const std::regex kWords(
      R"re(<(thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|atomic|)re"
      R"re(sys/[^>]*)>|"[^"]*\bdescriptor\.h"|)re"
      R"re(\b[A-Za-z_]*[Cc]lock::now|\bDeadline::after|\bsleep_for|\bsleep_until|\bthread_local|\bthis_thread::yield|)re"
      R"re(\bclock_gettime|\bgettimeofday|\bstd::time\(|)re"
      R"re(\bprocess_state\()re");
  return kWords;
}

bool is_pure(std::string_view path) {
  return std::ranges::any_of(kPure, [&](auto begin) { return path.starts_with(begin); }) &&
         std::ranges::none_of(kImpure, [&](const ImpureFile& file) { return file.path == path; });
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

// Counts the fields of a file's classes. `met` collects the large classes that were found.
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

}  // namespace

std::span<const ImpureFile> impure_files() { return kImpure; }

std::span<const LargeClass> large_classes() { return kLargeClasses; }

Report check_tree(const fs::path& root, std::span<const LargeClass> listed) {
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
      check_comments(relative.string(), lines, report.faults);
      check_classes(relative.string(), lines, listed, met, report.faults);
    }
  }
  for (const auto& [folder, count] : files_in)
    if (count > kMostFiles)
      report.faults.push_back(folder + ": " + std::to_string(count) + " files, more than " +
                              std::to_string(kMostFiles) + ": give it rooms");
  for (const auto& large : listed)
    if (std::ranges::count(met, &large) == 0)
      report.faults.push_back(std::string(large.path) + ": has no class " +
                              std::string(large.name) + ", which the list names as large");
  std::sort(report.faults.begin(), report.faults.end());
  return report;
}

}  // namespace tutti
