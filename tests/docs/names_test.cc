// The names on the pages must exist: variables, calls, options of the tools.
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "tests/docs/pages.h"

namespace tutti::docs {
namespace {

namespace fs = std::filesystem;

void expect_words_exist(const std::regex& pattern, const std::string& where) {
  const auto& known = everything_but_documents();
  size_t words = 0;
  for (const auto& page : pages())
    for (std::sregex_iterator at(page.text.begin(), page.text.end(), pattern), end; at != end;
         ++at) {
      const std::string word = (*at)[0];
      if (word.ends_with('_')) continue;  // such as TUTTI_...
      ++words;
      EXPECT_TRUE(has_word(known, word)) << page.path << " names " << word << ", which " << where;
    }
  EXPECT_GT(words, 20U);
}

TEST(Docs, EveryVariableExists) {
  expect_words_exist(std::regex("\\bTUTTI_[A-Z0-9_]+"), "nothing reads");
}

TEST(Docs, EveryCallOfTheCInterfaceExists) {
  expect_words_exist(std::regex("\\btutti_[a-z0-9_]+"), "no source has");
}

// The middle column of coming-from.md lists this library's interface.
TEST(Docs, WhatComingFromCallsOursIsOurs) {
  std::string headers;
  for (const char* folder : {"core", "adapters", "tensor", "kernels"})
    for (const auto& entry : fs::recursive_directory_iterator(root() / folder))
      if (entry.path().extension() == ".h") headers += read_file(entry.path());
  static const std::regex row("\n\\|[^|\n]*\\|([^|\n]*)\\|"), call("([a-z_]+)\\(");
  static const std::regex member("::([a-z_]+)");
  const auto text = read_file(root() / "docs/coming-from.md");
  size_t calls = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), row), end; at != end; ++at) {
    const std::string ours = (*at)[1];
    for (const auto* pattern : {&call, &member})
      for (std::sregex_iterator name(ours.begin(), ours.end(), *pattern); name != end; ++name) {
        ++calls;
        EXPECT_TRUE(has_word(headers, (*name)[1])) << "coming-from.md: " << ours;
      }
  }
  EXPECT_GT(calls, 50U);
}

// The sources of a tool, in which its options ("--np") occur.
std::string sources_of(const std::string& tool) {
  std::string text;
  for (const auto& entry :
       fs::recursive_directory_iterator(root() / "tools" / tool.substr(tool.find('-') + 1)))
    if (entry.is_regular_file()) text += read_file(entry.path());
  return text;
}

// Returns the tool's own options in one command line: those after its name, and for the launcher
// only those before the program.
std::vector<std::string> options_in(const std::string& line, const std::string& tool) {
  std::vector<std::string> found;
  std::stringstream words(line.substr(line.find(tool) + tool.size()));
  std::string word;
  while (words >> word) {
    if (word == "#" || word == "|" || word == "&&" || word == ";") break;
    if (word.starts_with("./") || word.starts_with("build/") || word.starts_with("tutti-") ||
        word.starts_with("python"))
      break;
    if (word.starts_with("--") && word.size() > 2)
      found.push_back(word.substr(0, word.find_first_of("=,;.")));
  }
  return found;
}

TEST(Docs, EveryOptionOfAToolExists) {
  size_t options = 0;
  for (const std::string tool : {"tutti-run", "tutti-bench", "tutti-doctor"}) {
    const auto sources = sources_of(tool);
    const auto look_at = [&](const std::string& page, const std::string& line) {
      if (line.find(tool + " ") == line.npos) return;
      for (const auto& option : options_in(line, tool)) {
        ++options;
        const bool is_there = option == "--help" || option == "--version" ||
                              sources.find("\"" + option + "\"") != sources.npos ||
                              sources.find("," + option + "\"") != sources.npos ||
                              sources.find("\"!" + option + "\"") != sources.npos;
        EXPECT_TRUE(is_there) << page << ": " << tool << " has no option " << option;
      }
    };
    for (const auto& page : pages()) {
      for (const auto& span : page.spans()) look_at(page.path, span);
      for (const auto& block : page.blocks) {
        if (block.language != "sh") continue;
        std::stringstream lines(block.text);
        std::string line;
        while (std::getline(lines, line)) look_at(page.path, line);
      }
    }
  }
  EXPECT_GT(options, 15U);
}

}  // namespace
}  // namespace tutti::docs
