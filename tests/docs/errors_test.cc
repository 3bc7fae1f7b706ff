// docs/troubleshooting.md must contain the error lines of the library. They are collected from the
// sources, with "..." for each inserted value.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "tests/docs/pages.h"

namespace tutti::docs {
namespace {

namespace fs = std::filesystem;

struct ErrorText {
  std::string place;  // file:line
  std::string text;
};

// Returns the index after the literal that begins at `at` (a quote).
size_t end_of_literal(const std::string& text, size_t at) {
  const char quote = text[at++];
  while (at < text.size() && text[at] != quote) at += text[at] == '\\' ? 2 : 1;
  return at + 1;
}

std::string plain(const std::string& literal) {
  static const std::regex filled(R"(\{[^{}]*\})");
  std::string text = std::regex_replace(literal, filled, "...");
  for (auto at = text.find('\\'); at != text.npos; at = text.find('\\', at + 1)) text.erase(at, 1);
  return text;
}

// Returns the literals in a call's arguments; `at` is after the opening parenthesis.
std::string text_of_call(const std::string& source, size_t at) {
  std::string text;
  bool adjacent = false;  // only blanks since the last literal
  for (int depth = 1; depth > 0 && at < source.size();) {
    const char c = source[at];
    if (c == '"') {
      const auto end = end_of_literal(source, at);
      if (!adjacent && !text.empty()) text += "...";
      text += plain(source.substr(at + 1, end - at - 2));
      adjacent = true;
      at = end;
    } else if (c == '\'') {
      at = end_of_literal(source, at);
    } else if (source.compare(at, 2, "//") == 0) {
      at = source.find('\n', at);
    } else {
      if (c == '(') ++depth;
      if (c == ')') --depth;
      if (!std::isspace(static_cast<unsigned char>(c))) adjacent = false;
      ++at;
    }
  }
  return text;
}

size_t letters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '=';
  }));
}

void collect_from(const fs::path& path, std::vector<ErrorText>& found) {
  static const std::regex call(
      R"(\b(Error|system_error|refused|refuse|fail|failure|usage_error)\()");
  if (path.extension() != ".cc" && path.extension() != ".h") return;
  const auto source = read_file(path);
  for (std::sregex_iterator at(source.begin(), source.end(), call), end; at != end; ++at) {
    const auto text = text_of_call(source, static_cast<size_t>(at->position() + at->length()));
    if (letters(text) < 8) continue;
    const auto line = 1 + std::count(source.begin(), source.begin() + at->position(), '\n');
    found.push_back({fs::relative(path, root()).string() + ":" + std::to_string(line), text});
  }
}

std::vector<ErrorText> collect_errors() {
  std::vector<ErrorText> found;
  for (const auto& entry : fs::directory_iterator(root() / "adapters"))
    collect_from(entry.path(), found);
  for (const char* folder :
       {"base", "tensor", "kernels", "collectives", "backends", "core", "adapters/c",
        "adapters/exchange", "adapters/nn", "tools/run", "tools/doctor"})
    for (const auto& entry : fs::recursive_directory_iterator(root() / folder))
      collect_from(entry.path(), found);
  return found;
}

// Returns whether the parts of a pattern occur in order; "..." stands for any text.
bool matches(const std::string& pattern, const std::string& text) {
  size_t from = 0;
  for (size_t begin = 0; begin <= pattern.size();) {
    const auto end = std::min(pattern.find("...", begin), pattern.size());
    auto part = pattern.substr(begin, end - begin);
    const auto found = text.find(part, from);
    if (found == text.npos) return false;
    from = found + part.size();
    begin = end + 3;
  }
  return true;
}

// Returns the code spans in the first column of the tables.
std::vector<std::string> patterns() {
  static const std::regex row("\n\\| `([^`\n]+)` \\|");
  const auto text = read_file(root() / "docs/troubleshooting.md");
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), row), end; at != end; ++at)
    found.push_back((*at)[1]);
  return found;
}

TEST(Docs, TroubleshootingKnowsTheErrorLines) {
  const auto errors = collect_errors();
  ASSERT_GT(errors.size(), 300U);
  const auto known = patterns();
  std::vector<ErrorText> unknown;
  for (const auto& error : errors)
    if (std::none_of(known.begin(), known.end(),
                     [&](const auto& pattern) { return matches(pattern, error.text); }))
      unknown.push_back(error);
  std::string list;
  for (const auto& [place, text] : unknown) list += "\n  " + place + ": " + text;
  EXPECT_LE(unknown.size() * 10, errors.size())
      << errors.size() - unknown.size() << " of " << errors.size()
      << " error lines stand in docs/troubleshooting.md; not there:" << list;
  if (!unknown.empty()) RecordProperty("not_there", list);
}

// A row that fits every line, or no line, is useless.
TEST(Docs, TroubleshootingRowsFitSomeLinesAndNotAll) {
  const auto errors = collect_errors();
  const auto& sources = everything_but_documents();
  for (const auto& pattern : patterns()) {
    EXPECT_GE(letters(pattern), 6U) << pattern;
    const auto hits = std::count_if(errors.begin(), errors.end(), [&](const auto& error) {
      return matches(pattern, error.text);
    });
    EXPECT_LE(hits, 15) << "too general: " << pattern;
    // Reports of the stall watch are not errors; their texts are in the sources.
    bool is_report = hits == 0;
    for (size_t begin = 0; is_report && begin < pattern.size();) {
      const auto end = std::min(pattern.find("...", begin), pattern.size());
      const auto part = pattern.substr(begin, std::min<size_t>(end - begin, 25));
      is_report = sources.find(part) != sources.npos;
      begin = end + 3;
    }
    EXPECT_TRUE(hits > 0 || is_report) << "the library never says: " << pattern;
  }
}

}  // namespace
}  // namespace tutti::docs
