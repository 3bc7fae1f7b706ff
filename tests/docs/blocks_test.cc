// Compiles and runs the blocks of code on the pages. tests/docs/blocks.txt lists the blocks that
// are checked in another way, and why.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

#include "tests/docs/pages.h"
#include "tests/support/scratch_folder.h"

namespace tutti::docs {
namespace {

namespace fs = std::filesystem;

const fs::path kBuild = TUTTI_BUILD_DIR;

// A folder that is removed with the test.
class Scratch {
 public:
  const fs::path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }
  // Runs a command in the folder, with this project's tools in PATH; shows its output if it fails.
  void expect_success(const std::string& command, const std::string& what) const {
    write("command.sh", command);
    const auto line =
        "cd '" + path_.string() + "' && PATH='" + (kBuild / "tools").string() +
        "':\"$PATH\" timeout 90 bash -euo pipefail command.sh >output 2>&1 </dev/null";
    const int status = std::system(line.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << what << "\n$ " << command << "\n"
                                                               << read_file(path_ / "output");
  }

 private:
  const test::ScratchFolder folder_;
  const fs::path path_ = folder_.path();
};

std::string place(const Block& block) {
  return block.page + ":" + std::to_string(block.line) + " (" + block.first_line() + ")";
}

bool is_program(const Block& block) { return block.text.find("int main(") != std::string::npos; }

std::vector<Block> blocks_of(const std::string& language) {
  std::vector<Block> found;
  for (const auto& page : pages())
    for (const auto& block : page.blocks) {
      if (block.language != language) continue;
      if (is_looked_at(block.page))
        found.push_back(block);
      else
        std::cout << "not looked at, for want of a row in tests/docs/blocks.txt: " << place(block)
                  << "\n";
    }
  return found;
}

// Removes blanks at the ends of lines, and empty lines, so that layout may differ.
std::string condensed(const std::string& text) {
  std::stringstream lines(text);
  std::string line, all;
  while (std::getline(lines, line)) {
    const auto begin = line.find_first_not_of(' ');
    if (begin == line.npos) continue;
    all += line.substr(begin, line.find_last_not_of(' ') - begin + 1) + "\n";
  }
  return all;
}

bool stands_elsewhere(const Block& block) {
  const auto* rule = rule_for(block);
  return rule != nullptr && rule->how.starts_with("in ");
}

// Makes one source of all C++ blocks, so that the library's headers are read once. Each block has
// its own namespace, statements are in a function, and main calls all programs and functions in
// turn.
std::string one_source(const std::vector<Block>& blocks) {
  std::set<std::string> includes;
  std::string body, calls;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& block = blocks[i];
    const auto name = "block_" + std::to_string(i);
    const auto* rule = rule_for(block);
    std::string text;
    std::stringstream lines(block.text);
    std::string line;
    while (std::getline(lines, line)) {
      const bool is_include = line.starts_with("#include");
      if (is_include) includes.insert(line);
      text += (is_include ? "" : line) + "\n";
    }
    const auto at = "\n#line " + std::to_string(block.line) + " \"" + block.page + "\"\n";
    body += "namespace " + name + " {\n";
    if (is_program(block)) {
      // Only the global main returns 0 by itself.
      const auto end = text.rfind('}');
      body += at + text.substr(0, end) + "return 0;\n}\n";
      calls += "  failed += " + name + "::main() != 0;\n";
    } else if (rule != nullptr && rule->how == "declarations") {
      body += at + text;
    } else {
      body +=
          "void run() {\n"
          "  [[maybe_unused]] auto [comm, parameters, gradient, loss] = "
          "tutti::docs::Surroundings();"
          "\n  using tutti::docs::compute_gradient;" +
          at + text + "}\n";
      calls += "  " + name + "::run();\n";
    }
    body += "}  // namespace " + name + "\n";
  }
  std::string source = "#include \"tests/docs/prelude.h\"\n";
  for (const auto& include : includes) source += include + "\n";
  return source + body + "int main() {\n  int failed = 0;\n" + calls + "  return failed;\n}\n";
}

std::string compile(const std::string& compiler, const std::string& flags,
                    const std::string& source) {
  return compiler + " " + flags + " -O0 -Wall -Wextra -Werror -Wno-unused -I'" +
         (kBuild / "include").string() + "' -I'" + root().string() + "' " + source +
         " -o program -L'" + kBuild.string() + "' -Wl,-rpath,'" + kBuild.string() + "' -ltutti";
}

TEST(Docs, EveryBlockThatStandsElsewhereDoes) {
  size_t found = 0;
  for (const auto& page : pages())
    for (const auto& block : page.blocks) {
      if (!stands_elsewhere(block)) continue;
      ++found;
      const auto file = rule_for(block)->how.substr(3);
      EXPECT_NE(condensed(read_file(root() / file)).find(condensed(block.text)), std::string::npos)
          << place(block) << " does not stand in " << file;
    }
  EXPECT_GE(found, 5U);
}

TEST(Docs, EveryBlockOfCppCompilesAndRuns) {
  auto blocks = blocks_of("cpp");
  std::erase_if(blocks, stands_elsewhere);
  ASSERT_GE(blocks.size(), 5U);
  const Scratch scratch;
  scratch.write("blocks.cc", one_source(blocks));
  scratch.expect_success(compile(TUTTI_CXX, "-std=c++20 -pthread", "blocks.cc"), "C++ blocks");
  if (HasFailure()) return;
  scratch.expect_success("./program", "C++ blocks on one rank");
  scratch.expect_success("tutti-run -np 2 ./program", "C++ blocks on two ranks");
}

TEST(Docs, EveryBlockOfCCompilesAndRuns) {
  const auto blocks = blocks_of("c");
  ASSERT_GE(blocks.size(), 2U);
  for (const auto& block : blocks) {
    const auto at = "#line " + std::to_string(block.line) + " \"" + block.page + "\"\n";
    const auto source =
        is_program(block)
            ? at + block.text
            : "#include <stdio.h>\n#include <tutti.h>\n"
              "static int run(tutti_comm_t comm, float* gradient, int64_t count) {\n" +
                  at + block.text +
                  "return 0;\n}\n"
                  "int main(void) {\n  tutti_comm_t comm;\n  float gradient[4] = {0};\n"
                  "  if (tutti_create(&comm) != TUTTI_OK || run(comm, gradient, 4) != 0)\n"
                  "    return fprintf(stderr, \"%s\\n\", tutti_last_error()), 1;\n"
                  "  tutti_destroy(comm);\n  return 0;\n}\n";
    const Scratch scratch;
    scratch.write("block.c", source);
    scratch.expect_success(compile(TUTTI_CC, "-std=c99", "block.c"), place(block));
    if (HasFailure()) return;
    scratch.expect_success("tutti-run -np 2 ./program", place(block));
  }
}

TEST(Docs, EveryShellBlockIsRunOrSaysWhyNot) {
  for (const auto& block : blocks_of("sh")) {
    const Scratch scratch;
    scratch.write("block.sh", block.text);
    scratch.expect_success("bash -n block.sh", place(block));
    const auto* rule = rule_for(block);
    if (rule == nullptr) {
      std::cout << "only its syntax was checked: " << place(block) << "\n";
    } else if (rule->how == "run") {
      fs::create_symlink(kBuild / "examples/ten_lines", scratch.path() / "train");
      scratch.expect_success(block.text, place(block));
    } else {
      EXPECT_FALSE(rule->why.empty()) << "tests/docs/blocks.txt says not why: " << place(block);
    }
  }
}

TEST(Docs, EveryRuleHasItsBlock) {
  for (const auto& rule : rules()) {
    if (rule.how == "all") {
      EXPECT_TRUE(fs::exists(root() / rule.page)) << rule.page;
      continue;
    }
    size_t blocks = 0;
    for (const auto& page : pages())
      for (const auto& block : page.blocks) blocks += rule_for(block) == &rule;
    EXPECT_EQ(blocks, 1U) << "tests/docs/blocks.txt: " << rule.page << ", " << rule.first_line;
  }
}

}  // namespace
}  // namespace tutti::docs
