#include "tests/base/class_fields.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace tutti::test {

namespace {

constexpr size_t kNone = ~size_t{0};

struct Word {
  std::string text;
  int line = 0;
  bool is_name = false;    // true for names, keywords and numbers
  bool is_spaced = false;  // true if a blank precedes it
  size_t partner = kNone;  // of a bracket: the index of its partner
  size_t parent = kNone;   // the index of the bracket around it
};

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Cuts a source into words. Comments, preprocessor lines and quoted text are left out.
class Cutter {
 public:
  explicit Cutter(const std::string& text) : text_(text) {}

  std::vector<Word> cut() {
    while (at_ < text_.size()) next();
    return std::move(words_);
  }

 private:
  bool comes(std::string_view what) const { return text_.compare(at_, what.size(), what) == 0; }
  char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void step() {
    if (here() == '\n') {
      ++line_;
      begins_line_ = true;
    }
    ++at_;
  }
  // Skips to the end of the next `end`.
  void skip_past(std::string_view end) {
    while (at_ < text_.size() && !comes(end)) step();
    for (size_t i = 0; i < end.size() && at_ < text_.size(); ++i) step();
  }
  void skip_directive() {
    while (at_ < text_.size() && here() != '\n') {
      if (here() == '\\') step();
      step();
    }
  }
  void skip_quoted(char quote) {
    step();
    while (at_ < text_.size() && here() != quote) {
      if (here() == '\\') step();
      step();
    }
    step();
  }
  void skip_raw() {  // R"x(...)x"
    const auto open = text_.find('(', at_);
    const auto mark = text_.substr(at_ + 1, open - at_ - 1);
    skip_past(")" + mark + "\"");
  }

  void add(std::string word, bool is_name) {
    words_.push_back({std::move(word), line_, is_name, is_spaced_});
    is_spaced_ = false;
    begins_line_ = false;
  }

  void next() {
    if (std::isspace(static_cast<unsigned char>(here())) != 0) {
      is_spaced_ = true;
      return step();
    }
    if (comes("//")) return skip_past("\n"), static_cast<void>(is_spaced_ = begins_line_ = true);
    if (comes("/*")) return at_ += 2, skip_past("*/");
    if (here() == '#' && begins_line_) return skip_directive();
    if (here() == '"' || here() == '\'') {
      const bool is_raw = here() == '"' && !words_.empty() && !is_spaced_ &&
                          words_.back().text.ends_with('R') && words_.back().is_name;
      add("\"", false);
      return is_raw ? skip_raw() : skip_quoted(here());
    }
    if (is_name_char(here())) return add_name();
    for (const std::string_view pair : {"::", "->"})
      if (comes(pair)) return at_ += 2, add(std::string(pair), false);
    add(std::string(1, here()), false);
    step();
  }

  void add_name() {
    const auto begin = at_;
    const bool is_number = std::isdigit(static_cast<unsigned char>(here())) != 0;
    while (is_name_char(here()) || (is_number && (here() == '.' || here() == '\''))) ++at_;
    auto name = text_.substr(begin, at_ - begin);
    if (name == "operator") {  // takes its sign, which is not a bracket here
      if (comes("()")) at_ += 2;
      while (at_ < text_.size() && !is_name_char(here()) && here() != '(' && here() != ' ') ++at_;
    }
    add(std::move(name), true);
  }

  const std::string& text_;
  std::vector<Word> words_;
  size_t at_ = 0;
  int line_ = 1;
  bool begins_line_ = true, is_spaced_ = false;
};

void match_brackets(std::vector<Word>& words) {
  std::vector<size_t> open;
  const auto drop_angles = [&] {
    while (!open.empty() && words[open.back()].text == "<") open.pop_back();
  };
  for (size_t i = 0; i < words.size(); ++i) {
    auto& word = words[i];
    const bool follows_name = i > 0 && words[i - 1].is_name;
    if (word.text == ";") drop_angles();
    if (word.text == ")" || word.text == "]" || word.text == "}") {
      drop_angles();
      if (open.empty()) continue;
      word.partner = open.back();
      words[open.back()].partner = i;
      open.pop_back();
    } else if (word.text == ">" && !open.empty() && words[open.back()].text == "<") {
      word.partner = open.back();
      words[open.back()].partner = i;
      open.pop_back();
    }
    word.parent = open.empty() ? kNone : open.back();
    const bool begins_arguments =
        word.text == "<" && follows_name && (!word.is_spaced || words[i - 1].text == "template");
    if (begins_arguments || word.text == "(" || word.text == "[" || word.text == "{")
      open.push_back(i);
  }
}

template <size_t N>
bool is_one_of(const Word& word, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), word.text) != words.end();
}

constexpr std::array<std::string_view, 3> kClassKeys = {"class", "struct", "union"};

class Counter {
 public:
  explicit Counter(std::vector<Word> words) : words_(std::move(words)) {}

  std::vector<CountedClass> count() {
    std::vector<CountedClass> classes;
    std::vector<std::pair<size_t, std::string>> around;  // the ends and names of the classes around
    for (size_t i = 0; i < words_.size(); ++i) {
      while (!around.empty() && around.back().first < i) around.pop_back();
      std::string name;
      const size_t body = body_of(i, name);
      if (body == kNone) continue;
      if (!around.empty()) name = around.back().second + "::" + name;
      classes.push_back({name, words_[i].line, fields_in(body)});
      around.emplace_back(words_[body].partner, name);
    }
    return classes;
  }

 private:
  bool is(size_t i, std::string_view text) const {
    return i < words_.size() && words_[i].text == text;
  }
  // Returns the index behind the bracket at `i` and its partner, or i + 1 if it has none.
  size_t behind(size_t i) const { return (words_[i].partner == kNone ? i : words_[i].partner) + 1; }

  // Returns the brace that begins the body of the class whose definition begins at `i`, or kNone.
  size_t body_of(size_t i, std::string& name) const {
    const bool is_parameter = words_[i].parent != kNone && words_[words_[i].parent].text == "<";
    if (!is_one_of(words_[i], kClassKeys) || is_parameter || (i > 0 && is(i - 1, "enum")))
      return kNone;
    name = "(unnamed)";
    bool in_bases = false;
    for (size_t at = i + 1; at < words_.size();) {
      const auto& word = words_[at];
      if (word.text == "{") return word.partner == kNone ? kNone : at;
      if (word.text == "[" || word.text == "(" || (word.text == "<" && word.partner != kNone)) {
        if (word.text == "(" && !in_bases && !is(at - 1, "alignas")) return kNone;
        at = behind(at);
        continue;
      }
      if (word.text == ":")
        in_bases = true;
      else if (!word.is_name && word.text != "::" && !(in_bases && word.text == ","))
        return kNone;
      else if (word.is_name && !in_bases && word.text != "final" && word.text != "alignas")
        name = word.text;
      ++at;
    }
    return kNone;
  }

  int fields_in(size_t body) const {
    const size_t end = words_[body].partner;
    int fields = 0;
    for (size_t at = body + 1; at < end;) fields += declared(at, end);
    return fields;
  }

  // Counts the fields that the declaration at `at` declares, and moves to the next one.
  int declared(size_t& at, size_t end) const {
    static constexpr std::array<std::string_view, 3> kAccess = {"public", "protected", "private"};
    static constexpr std::array<std::string_view, 4> kNoMembers = {"using", "typedef", "friend",
                                                                   "static_assert"};
    static constexpr std::array<std::string_view, 2> kNotOfObjects = {"static", "constexpr"};
    static constexpr std::array<std::string_view, 4> kTakesBrackets = {"alignas", "decltype",
                                                                       "explicit", "__attribute__"};
    if (is_one_of(words_[at], kAccess) && is(at + 1, ":")) return at += 2, 0;
    if (is(at, "template") && is(at + 1, "<")) return at = behind(at + 1), 0;
    const size_t begin = at;
    bool is_field = !is_one_of(words_[at], kNoMembers);
    bool is_function = false, has_initializers = false, has_value = false, is_pointer = false;
    size_t body = kNone;  // of a class or enumeration that is defined here
    int declarators = 1;
    while (at < end && !is(at, ";")) {
      const auto& word = words_[at];
      std::string name;
      if (is_one_of(word, kNotOfObjects) && !has_value) is_field = false;
      if (word.text.starts_with("operator") && word.is_name && is(at + 1, "(")) is_function = true;
      if (word.text == "operator") is_function = true;
      if (const auto found = body_of(at, name); found != kNone && !is_function && !has_value) {
        body = found;
        at = behind(found);
        continue;
      }
      if (word.text == "(" && !is_function && !has_value && !is_pointer) {
        is_pointer = is(at + 1, "*") || is(at + 1, "&");
        is_function = !is_pointer && !is_one_of(words_[at - 1], kTakesBrackets);
      } else if (word.text == "{" && is_function) {
        const auto& before = words_[at - 1];
        const bool is_initializer =
            has_initializers && ((before.is_name && before.text != "try") || before.text == ">");
        if (!is_initializer) {
          at = behind(at);
          return 0;
        }
      } else if (word.text == "{" && body == kNone && is(begin, "enum") && !has_value) {
        body = at;
      } else if (word.text == ":" && is_function) {
        has_initializers = true;
      } else if (word.text == "=") {
        has_value = true;
      } else if (word.text == ",") {
        ++declarators;
        has_value = is_pointer = false;
      }
      at = word.partner != kNone && word.partner > at ? behind(at) : at + 1;
    }
    const size_t last = at;
    at = std::min(end, at + 1);
    if (!is_field || is_function || last == begin) return 0;
    if (body == kNone) return is_only_named(begin, last) ? 0 : declarators;
    if (last > behind(body)) return declarators;
    return is(begin, "enum") || body != begin + 1 ? 0 : fields_in(body);
  }

  // Returns whether [begin, end) only names a type and declares nothing with it.
  bool is_only_named(size_t begin, size_t end) const {
    const bool is_enum = is(begin, "enum");
    if (!is_enum && !is_one_of(words_[begin], kClassKeys)) return false;
    int names = 0;
    for (size_t at = begin + 1; at < end; ++at) {
      if (is_enum && is(at, ":")) return true;
      if (words_[at].text == "[" || words_[at].text == "<") {
        at = behind(at) - 1;
        continue;
      }
      if (!words_[at].is_name && words_[at].text != "::") return false;
      const bool is_key = is_enum && is_one_of(words_[at], kClassKeys);
      names += words_[at].is_name && !is_key && !is(at - 1, "::") ? 1 : 0;
    }
    return names <= 1;
  }

  const std::vector<Word> words_;
};

}  // namespace

std::vector<CountedClass> classes_of(const std::string& text) {
  auto words = Cutter(text).cut();
  match_brackets(words);
  return Counter(std::move(words)).count();
}

}  // namespace tutti::test
