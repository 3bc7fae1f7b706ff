#include "tutti/base/text.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace tutti {

std::string format_ranks(std::span<const int> ranks) {
  if (ranks.empty()) return "none";
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ' ';
    if (last >= i + 2) {
      text += fmt::format("{}-{}", ranks[i], ranks[last]);
      i = last + 1;
    } else {
      text += fmt::format("{}", ranks[i]);
      ++i;
    }
  }
  return text;
}

std::string format_rank_set(std::span<const int> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + format_ranks(ranks);
}

namespace {

// Computes the Levenshtein distance, one row at a time. A transposition of neighbours counts as one
// edit (optimal string alignment), because swapped letters are the most common slip.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string format_count(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::optional<std::string> nearest_word(std::string_view word,
                                        std::span<const std::string> candidates) {
  const size_t limit = std::clamp<size_t>(word.size() / 3, 1, 4);
  std::optional<std::string> best;
  size_t best_distance = limit + 1;
  for (const auto& candidate : candidates) {
    if (candidate == word) continue;
    const auto longer = std::max(candidate.size(), word.size());
    if (longer - std::min(candidate.size(), word.size()) >= best_distance) continue;
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best;
}

std::optional<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  if (value < low || value > high) return {};
  return value;
}

std::optional<int64_t> parse_size(std::string_view text) {
  int shift = 0;
  if (!text.empty()) {
    switch (text.back()) {
      case 'K':
      case 'k':
        shift = 10;
        break;
      case 'M':
      case 'm':
        shift = 20;
        break;
      case 'G':
      case 'g':
        shift = 30;
        break;
      default:
        break;
    }
    if (shift) text.remove_suffix(1);
  }
  const auto value = parse_integer(text, 0, std::numeric_limits<int64_t>::max() >> shift);
  if (!value) return {};
  return *value << shift;
}

std::optional<double> parse_number(std::string_view text, double low, double high) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  if (!std::isfinite(value) || value < low || value > high) return {};
  return value;
}

namespace {

// Returns the number of bytes of the first UTF-8 character of `text`, or 0 if it is invalid.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // Rejects overlong forms, surrogates, and code points beyond the last character.
  const bool is_wrong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
                        (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f);
  return is_wrong ? 0 : length;
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0)
      out += "\\ufffd";
    else if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + '"';
}

bool is_operation_name(std::string_view text) {
  if (text.empty() || text.size() > kLongestName) return false;
  // Checks eight bytes at a time, because a check of each byte would take almost as long as a
  // blocking call. Subtracting 0x20 sets the highest bit of a byte below 0x20. A byte of 0x7f
  // becomes 0 by the xor, and subtracting 1 then sets its highest bit.
  constexpr uint64_t kEachByte = 0x0101010101010101;
  uint64_t found = 0;
  for (; text.size() >= sizeof(uint64_t); text.remove_prefix(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof word);
    const uint64_t deleted = word ^ (0x7f * kEachByte);
    found |= ((word - 0x20 * kEachByte) & ~word) | ((deleted - kEachByte) & ~deleted);
  }
  for (const char c : text) found |= static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? 0x80 : 0;
  return (found & 0x80 * kEachByte) == 0;
}

std::string shown_name(std::string_view name) {
  constexpr size_t kShown = 60;
  if (name.size() <= kLongestName) return json_string(name);
  return fmt::format("{}... ({} bytes)", json_string(name.substr(0, kShown)), name.size());
}

std::string one_line(std::string_view text, size_t longest) {
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const auto c = static_cast<unsigned char>(text.front());
    const bool is_shown = length != 0 && c >= 0x20 && c != 0x7f;
    const auto next = is_shown ? text.substr(0, length) : std::string_view(" ");
    if (out.size() + next.size() > longest) break;
    out += next;
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const auto at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t hash_text(std::string_view text, uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

}  // namespace tutti
