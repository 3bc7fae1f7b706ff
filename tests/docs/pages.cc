#include "tests/docs/pages.h"

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

namespace tutti::docs {

namespace fs = std::filesystem;

namespace {

std::string trim(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

bool is_indented(const std::string& line) { return line.starts_with("    "); }

bool is_command(const std::string& line) {
  static const std::regex command(
      R"(^([A-Z_]+=\S* )*(\./dev|tutti-|export |cmake |c\+\+ |cc |tests/|build/|apt|pip|python))");
  return std::regex_search(line, command);
}

// Returns the anchor of a heading.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading)
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (c == ' ')
      anchor += '-';
  return anchor;
}

Page parse(const std::string& path) {
  Page page{path, read_file(root() / path), "", {}};
  std::stringstream lines(page.text);
  std::string line, before;
  int number = 0;
  bool in_fence = false, in_indented = false, in_list = false;
  while (std::getline(lines, line)) {
    ++number;
    const bool is_fence = line.starts_with("```");
    if (!in_fence && !is_fence && in_indented && is_indented(line)) {
      page.blocks.back().text += line.substr(4) + "\n";
      line.clear();
    } else if (in_fence && !is_fence) {
      page.blocks.back().text += line + "\n";
      line.clear();
    } else if (is_fence) {
      if (!in_fence)
        page.blocks.push_back({path, number + 1, line.substr(3, line.find(' ') - 3), ""});
      in_fence = !in_fence;
      line.clear();
    } else if (is_indented(line) && before.empty() && !in_list) {
      in_indented = true;
      line = line.substr(4);
      page.blocks.push_back({path, number, is_command(line) ? "sh" : "", line + "\n"});
      line.clear();
    } else {
      in_indented = false;
      static const std::regex item("^ *([-*]|[0-9]+\\.) ");
      if (std::regex_search(line, item))
        in_list = true;
      else if (!line.empty() && line[0] != ' ')
        in_list = false;
    }
    before = line;
    page.prose += line + "\n";
  }
  return page;
}

}  // namespace

const fs::path& root() {
  static const fs::path path = TUTTI_SOURCE_DIR;
  return path;
}

std::string read_file(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<std::string> Page::spans() const {
  static const std::regex span("`([^`\n]+)`");
  std::vector<std::string> found;
  for (std::sregex_iterator at(prose.begin(), prose.end(), span), end; at != end; ++at)
    found.push_back((*at)[1]);
  return found;
}

std::set<std::string> Page::anchors() const {
  static const std::regex heading("(^|\n)#+ ([^\n]*)");
  std::set<std::string> found;
  for (std::sregex_iterator at(prose.begin(), prose.end(), heading), end; at != end; ++at)
    found.insert(anchor_of((*at)[2]));
  return found;
}

const std::vector<Page>& pages() {
  static const auto all = [] {
    std::vector<std::string> paths;
    for (const auto& folder : {root(), root() / "docs"})
      for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".md")
          paths.push_back(fs::relative(entry.path(), root()).string());
    std::sort(paths.begin(), paths.end());
    std::vector<Page> parsed;
    for (const auto& path : paths) parsed.push_back(parse(path));
    return parsed;
  }();
  return all;
}

const std::string& everything_but_documents() {
  static const auto all = [] {
    const std::set<std::string> kinds = {".cc",    ".h",  ".c",  ".cu", ".in",  ".txt",
                                         ".cmake", ".py", ".sh", ".sl", ".json"};
    std::string text;
    for (const auto& top : fs::directory_iterator(root())) {
      const auto name = top.path().filename().string();
      if (!top.is_directory() || name[0] == '.' || name == "build" || name == "docs") continue;
      for (const auto& entry : fs::recursive_directory_iterator(top))
        if (entry.is_regular_file() && kinds.count(entry.path().extension().string()) > 0 &&
            entry.path().filename() != "blocks.txt")
          text += read_file(entry.path());
    }
    return text + read_file(root() / "CMakeLists.txt");
  }();
  return all;
}

bool has_word(const std::string& text, const std::string& word) {
  const auto is_part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (auto at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const auto end = at + word.size();
    if ((at == 0 || !is_part(text[at - 1])) && (end == text.size() || !is_part(text[end])))
      return true;
  }
  return false;
}

const std::vector<Rule>& rules() {
  static const auto all = [] {
    std::vector<Rule> parsed;
    std::stringstream lines(read_file(root() / "tests/docs/blocks.txt"));
    std::string line;
    while (std::getline(lines, line)) {
      if (line.empty() || line[0] == '#') continue;
      std::vector<std::string> fields;
      size_t begin = 0;
      for (auto end = line.find(" | "); end != line.npos; end = line.find(" | ", begin)) {
        fields.push_back(trim(line.substr(begin, end - begin)));
        begin = end + 3;
      }
      fields.push_back(trim(line.substr(begin)));
      fields.resize(4);
      parsed.push_back({fields[0], fields[1], fields[2], fields[3]});
    }
    return parsed;
  }();
  return all;
}

bool is_looked_at(const std::string& page) {
  return std::any_of(rules().begin(), rules().end(),
                     [&](const Rule& rule) { return rule.how == "all" && rule.page == page; });
}

const Rule* rule_for(const Block& block) {
  for (const auto& rule : rules())
    if (rule.how != "all" && rule.page == block.page &&
        block.first_line().starts_with(rule.first_line))
      return &rule;
  return nullptr;
}

}  // namespace tutti::docs
