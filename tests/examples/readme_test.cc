// The code that documents show must be in a compiled example, and the paths that they name must
// exist.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace tutti {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = TUTTI_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Returns the fenced blocks of one language.
std::vector<std::string> code_blocks(const std::string& markdown, const std::string& language) {
  std::vector<std::string> blocks;
  const std::string open = "```" + language + "\n", close = "```\n";
  for (auto at = markdown.find(open); at != markdown.npos; at = markdown.find(open, at)) {
    at += open.size();
    blocks.push_back(markdown.substr(at, markdown.find(close, at) - at));
  }
  return blocks;
}

TEST(Readme, ItsTenLinesAreTheExample) {
  const auto blocks = code_blocks(read(kRoot / "README.md"), "cpp");
  ASSERT_FALSE(blocks.empty());
  EXPECT_EQ(blocks.front(), read(kRoot / "examples/ten_lines.cc"));
}

TEST(Readme, EveryOtherSampleStandsInAnExampleOrATest) {
  std::string compiled;
  for (const char* folder : {"examples", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder))
      if (entry.path().extension() == ".cc" || entry.path().extension() == ".c")
        compiled += read(entry.path());
  for (const char* language : {"cpp", "c"})
    for (const auto& block : code_blocks(read(kRoot / "README.md"), language))
      EXPECT_NE(compiled.find(block), compiled.npos) << block;
}

TEST(Readme, EveryPathItNamesExists) {
  const std::regex path("`([A-Za-z_.-]+/[A-Za-z0-9_./-]*)`");
  for (const char* document : {"README.md", "docs/decisions.md", "CONTRIBUTING.md"}) {
    const auto text = read(kRoot / document);
    ASSERT_FALSE(text.empty()) << document;
    for (std::sregex_iterator at(text.begin(), text.end(), path), end; at != end; ++at)
      EXPECT_TRUE(fs::exists(kRoot / (*at)[1].str())) << document << " names " << (*at)[1];
  }
}

}  // namespace
}  // namespace tutti
