// Checks the headers that programs and plugins may include (cmake/public_headers.txt). A header
// that one of them includes is listed too, none needs another library's header, and the examples
// include no other header. package_test.sh checks that nothing else is installed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace tutti {
namespace {

namespace fs = std::filesystem;

using Faults = std::vector<std::string>;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

// Raise this limit only with care: each header adds to the public interface.
constexpr size_t kMostHeaders = 60;

// This example calls the trainer's kernels, which are not installed.
constexpr std::string_view kExampleOfTheTree = "examples/matmul.cc";

// Returns the path in the tree of the header that programs include by this name.
std::string path_of_header(const std::string& target) {
  if (target == "tutti.h") return "adapters/c/tutti.h";
  if (target == "tutti/tutti.h") return "core/tutti.h";
  if (target == "tutti/nn.h") return "adapters/nn/nn.h";
  return target.starts_with("tutti/") ? target.substr(6) : "";
}

// Returns whether this is a header of C++'s or C's standard library, or the POSIX header that
// channels need. The plus sign occurs in the name with which base/cpp20.h stops an older compiler.
bool is_standard(const std::string& target) {
  static const std::regex kPlain("[a-z0-9_+]+");
  static const std::set<std::string> kOthers = {"stddef.h", "stdint.h", "sys/uio.h"};
  return std::regex_match(target, kPlain) || kOthers.contains(target);
}

// LibTorch's adapter is for programs that have LibTorch.
bool is_of_libtorch(const std::string& target) {
  return target.starts_with("ATen/") || target.starts_with("c10/") || target.starts_with("torch/");
}

struct Included {
  std::string where;  // "core/work.h:7"
  std::string target;
};

std::vector<Included> includes_of(const fs::path& root, const std::string& file) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*[<"]([^>"]+)[>"].*)re");
  std::vector<Included> found;
  std::ifstream in(root / file);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (std::smatch match; std::regex_match(line, match, kInclude))
      found.push_back({file + ":" + std::to_string(number), match[1]});
  }
  return found;
}

// The listed headers, and the target that each is installed with; "" means with every build.
using HeaderList = std::map<std::string, std::string>;

HeaderList read_list(const fs::path& root, Faults& faults) {
  HeaderList list;
  std::ifstream in(root / "cmake/public_headers.txt");
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto blank = line.find(' ');
    const auto header = line.substr(0, blank);
    const auto target = blank == line.npos ? "" : line.substr(blank + 1);
    if (!list.emplace(header, target).second) faults.push_back(header + " is listed twice");
    if (!fs::exists(root / header)) faults.push_back(header + " is listed, but is not there");
  }
  return list;
}

void check_header(const fs::path& root, const HeaderList& list, const std::string& header,
                  const std::string& target, Faults& faults) {
  for (const auto& [where, name] : includes_of(root, header)) {
    const auto path = path_of_header(name);
    const auto found = list.find(path);
    if (path.empty()) {
      if (!is_standard(name) && !(target == "tutti_torch" && is_of_libtorch(name)))
        faults.push_back(where + ": " + name + " is a header of another library");
    } else if (found == list.end()) {
      faults.push_back(where + ": " + path + " is not listed");
    } else if (!found->second.empty() && found->second != target) {
      faults.push_back(where + ": " + path + " is only there with " + found->second);
    }
  }
}

void check_examples(const fs::path& root, const HeaderList& list, Faults& faults) {
  if (!fs::exists(root / "examples")) return;
  for (const auto& entry : fs::recursive_directory_iterator(root / "examples")) {
    const auto file = fs::relative(entry.path(), root).string();
    if (!entry.is_regular_file() || file == kExampleOfTheTree) continue;
    for (const auto& [where, name] : includes_of(root, file))
      if (const auto path = path_of_header(name); !path.empty() && !list.contains(path))
        faults.push_back(where + ": " + path + " is not listed");
  }
}

Faults faults_of(const fs::path& root) {
  Faults faults;
  const auto list = read_list(root, faults);
  for (const auto& [header, target] : list) check_header(root, list, header, target, faults);
  check_examples(root, list, faults);
  return faults;
}

TEST(PublicHeaders, HoldTogether) {
  const fs::path root = TUTTI_SOURCE_DIR;
  EXPECT_THAT(faults_of(root), IsEmpty());
  Faults none;
  const auto size = read_list(root, none).size();
  EXPECT_GE(size, 50u) << "where is the list?";
  EXPECT_LE(size, kMostHeaders);
}

// Returns the names that `pattern` finds in <tutti.h>, without its comments.
std::set<std::string> names_of_c_header(const std::regex& pattern) {
  std::ifstream in(fs::path(TUTTI_SOURCE_DIR) / "adapters/c/tutti.h");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  for (auto at = text.find("/*"); at != text.npos; at = text.find("/*", at))
    text.erase(at, text.find("*/", at) + 2 - at);
  std::set<std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

// A new kind of call is a row in a table of the header, and a variant is a field of tutti_call_t.
TEST(PublicHeaders, TheCInterfaceStaysSmall) {
  auto functions = names_of_c_header(std::regex(R"(\b(tutti_[a-z_]+)\()"));
  const auto inlines = names_of_c_header(std::regex(R"(static inline \w+ (tutti_[a-z_]+)\()"));
  EXPECT_TRUE(inlines.contains("tutti_vector"));
  for (const auto& name : inlines) functions.erase(name);
  EXPECT_TRUE(functions.contains("tutti_start"));
  EXPECT_GE(functions.size(), 50u) << "where are the functions?";
  EXPECT_LE(functions.size(), 60u) << testing::PrintToString(functions);
  EXPECT_LE(inlines.size(), 6u) << testing::PrintToString(inlines);
}

// A small tree in the temporary folder.
class PlantedHeaders : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "public_headers_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void plant(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  fs::path root_;
};

TEST_F(PlantedHeaders, WhatIsListedAndStandardIsRight) {
  plant("cmake/public_headers.txt",
        "# a comment\n\ncore/tutti.h\ncore/work.h\nadapters/torch/x.h tutti_torch\n");
  plant("core/tutti.h", "#include \"tutti/core/work.h\"\n");
  plant("core/work.h", "#include <sys/uio.h>\n#include <vector>\n");
  plant("adapters/torch/x.h", "#include <torch/version.h>\n#include \"tutti/tutti.h\"\n");
  plant("examples/a.cc", "#include <CLI/CLI.hpp>\n#include <tutti/tutti.h>\n");
  EXPECT_THAT(faults_of(root_), IsEmpty());
}

TEST_F(PlantedHeaders, EachFaultIsNamed) {
  plant("cmake/public_headers.txt",
        "core/work.h\ncore/work.h\ncore/gone.h\nadapters/nn/nn.h tutti_nn\n"
        "adapters/torch/x.h tutti_torch\n");
  plant("core/work.h",
        "#include <fmt/format.h>\n#include \"tutti/core/engine/engine.h\"\n"
        "#include <torch/version.h>\n#include \"tutti/nn.h\"\n");
  plant("adapters/nn/nn.h", "#include \"tutti/core/work.h\"\n");
  plant("adapters/torch/x.h", "#include \"tutti/nn.h\"\n");
  plant("examples/plugin/a.cc", "#include \"tutti/base/text.h\"\n");
  EXPECT_THAT(
      faults_of(root_),
      UnorderedElementsAre("core/work.h is listed twice", "core/gone.h is listed, but is not there",
                           "core/work.h:1: fmt/format.h is a header of another library",
                           "core/work.h:2: core/engine/engine.h is not listed",
                           "core/work.h:3: torch/version.h is a header of another library",
                           "core/work.h:4: adapters/nn/nn.h is only there with tutti_nn",
                           "adapters/torch/x.h:1: adapters/nn/nn.h is only there with tutti_nn",
                           "examples/plugin/a.cc:1: base/text.h is not listed"));
}

}  // namespace
}  // namespace tutti
