// The rules of the house that a reader relies on, checked on the sources themselves.
#include <gtest/gtest.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tutti/base/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = TUTTI_SOURCE_DIR;

// Lowest first. A floor includes itself and what stands before it.
const std::vector<std::string> kFloors = {"base",     "tensor", "kernels", "collectives",
                                          "backends", "core",   "adapters"};

struct Source {
  std::string path;  // below the root
  std::vector<std::string> lines;
};

std::vector<Source> sources(const std::vector<std::string>& folders) {
  std::vector<Source> all;
  for (const auto& folder : folders) {
    if (!fs::exists(kRoot / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const auto kind = entry.path().extension();
      if (kind != ".h" && kind != ".cc" && kind != ".c" && kind != ".cu") continue;
      Source source{fs::relative(entry.path(), kRoot), {}};
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) source.lines.push_back(line);
      all.push_back(std::move(source));
    }
  }
  return all;
}

ptrdiff_t height(const std::string& floor) {
  return std::find(kFloors.begin(), kFloors.end(), floor) - kFloors.begin();
}

TEST(Floors, IncludesPointDown) {
  const std::regex quoted("\\s*#\\s*include\\s*\"(.*)\".*");
  int checked = 0;
  for (const auto& source : sources(kFloors)) {
    const auto own = source.path.substr(0, source.path.find('/'));
    for (const auto& line : source.lines) {
      std::smatch match;
      if (!std::regex_match(line, match, quoted)) continue;
      const fs::path path = match[1].str();
      const auto floor = std::next(path.begin());
      ASSERT_TRUE(*path.begin() == "tutti" && floor != path.end())
          << source.path << ": " << line << ": write \"tutti/<floor>/<file>.h\"";
      EXPECT_LE(height(*floor), height(own))
          << source.path << ": " << line << ": " << own << " stands below " << *floor;
      ++checked;
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(Floors, NoBackendKnowsAnother) {
  const std::regex include("\\s*#\\s*include\\s*\"tutti/backends/([a-z]+)/.*\".*");
  for (const auto& source : sources({"backends"})) {
    const auto folder = fs::path(source.path).parent_path().filename().string();
    for (const auto& line : source.lines) {
      std::smatch match;
      if (std::regex_match(line, match, include)) {
        EXPECT_EQ(match[1], folder) << source.path << ": " << line;
      }
    }
  }
}

TEST(House, NoFileIsLongerThan600Lines) {
  auto folders = kFloors;
  folders.insert(folders.end(), {"tools", "tests", "examples", "benchmarks"});
  for (const auto& source : sources(folders))
    EXPECT_LE(source.lines.size(), 600u) << source.path << ": look for its second job";
}

TEST(House, TheEnvironmentIsReadInOneFile) {
  const std::regex reads("(^|.*[^a-zA-Z_])((secure_)?getenv|environ)([^a-zA-Z_].*|$)");
  int readers = 0;
  for (const auto& source : sources(kFloors))
    for (const auto& line : source.lines) {
      const auto code = line.substr(0, line.find("//"));
      if (!std::regex_match(code, reads)) continue;
      EXPECT_EQ(source.path, "core/options.cc") << line << ": settings come from Options";
      ++readers;
    }
  EXPECT_GT(readers, 0);
}

// This program links the core library and nothing else of ours.
TEST(House, TheCoreLibraryNeedsNoLayersAndNoDevices) {
  ASSERT_FALSE(to_string(ErrorCode::io).empty());
  std::vector<std::string> loaded;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* names) {
        static_cast<std::vector<std::string>*>(names)->push_back(info->dlpi_name);
        return 0;
      },
      &loaded);
  EXPECT_TRUE(std::any_of(loaded.begin(), loaded.end(), [](const std::string& name) {
    return name.find("libtutti.so") != name.npos;
  }));
  for (const auto& name : loaded)
    for (const char* heavy : {"dnnl", "gomp", "libomp", "cuda", "nccl", "gloo", "libucp"})
      EXPECT_EQ(name.find(heavy), std::string::npos) << name;
}

}  // namespace
}  // namespace tutti
