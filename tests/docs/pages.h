#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace tutti::docs {

/// A piece of code on a page. It is fenced, with the fence's first word as its language, or
/// indented by four blanks ("sh" if it begins like a command, otherwise "").
struct Block {
  std::string page;      // "docs/start.md"
  int line = 0;          // of its first line on the page, from 1
  std::string language;  // "cpp", "c", "sh", "cmake", ...
  std::string text;      // whole lines
  std::string first_line() const { return text.substr(0, text.find('\n')); }
};

/// A page and its parts.
struct Page {
  std::string path;   // relative to the root: "docs/start.md"
  std::string text;   // the unchanged text
  std::string prose;  // without code blocks; line numbers are unchanged
  std::vector<Block> blocks;
  /// The texts between backticks in the prose.
  std::vector<std::string> spans() const;
  /// The anchors of the page's headings.
  std::set<std::string> anchors() const;
};

/// The root of the source tree.
const std::filesystem::path& root();
std::string read_file(const std::filesystem::path& path);
/// The pages at the root and in docs/.
const std::vector<Page>& pages();

/// The text of all files that are not documents: sources, scripts, build files, and the commands in
/// dev.
const std::string& everything_but_documents();
/// Returns whether `text` contains `word` as a whole word.
bool has_word(const std::string& text, const std::string& word);

/// A row of tests/docs/blocks.txt: how to check a block whose language is not enough to know.
struct Rule {
  std::string how, page, first_line, why;
};
const std::vector<Rule>& rules();
/// Returns whether blocks.txt says that all blocks of this page are checked.
bool is_looked_at(const std::string& page);
/// The rule for a block, or null.
const Rule* rule_for(const Block& block);

}  // namespace tutti::docs
