#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace tutti::docs {

/// A piece of code on a page: fenced, with the fence's first word as its language, or indented by
/// four blanks ("sh" if it begins like a command, else "").
struct Block {
  std::string page;      // "docs/start.md"
  int line = 0;          // of its first line on the page, from 1
  std::string language;  // "cpp", "c", "sh", "cmake", ...
  std::string text;      // whole lines
  std::string first_line() const { return text.substr(0, text.find('\n')); }
};

/// A page as the tests look at it.
struct Page {
  std::string path;   // below the root: "docs/start.md"
  std::string text;   // as it is
  std::string prose;  // without its blocks of code; lines stay where they were
  std::vector<Block> blocks;
  /// What stands between backticks in the prose.
  std::vector<std::string> spans() const;
  /// The anchors of its headings.
  std::set<std::string> anchors() const;
};

/// The root of the sources.
const std::filesystem::path& root();
std::string read_file(const std::filesystem::path& path);
/// The pages at the root and in docs/.
const std::vector<Page>& pages();

/// All text that is no document: sources, scripts and build files, the commands in dev.
const std::string& everything_but_documents();
/// Whether `word` stands in `text` as a word of its own.
bool has_word(const std::string& text, const std::string& word);

/// A row of tests/docs/blocks.txt: how a block is checked where its language does not say so.
struct Rule {
  std::string how, page, first_line, why;
};
const std::vector<Rule>& rules();
/// Whether blocks.txt says that all blocks of this page are looked at.
bool is_looked_at(const std::string& page);
/// The rule for a block, or null.
const Rule* rule_for(const Block& block);

}  // namespace tutti::docs
