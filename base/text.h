#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// "0-2 5 7-9" for {0,1,2,5,7,8,9}; "none" for no rank. `ranks` ascending.
std::string format_ranks(std::span<const int> ranks);

/// "rank 3" or "ranks 0-2 5".
std::string format_rank_set(std::span<const int> ranks);

/// "1 rank", "3 ranks": nouns whose plural ends in s.
std::string format_count(int64_t count, std::string_view noun);

/// The candidate with the least edit distance to `word`, if it is close enough to be a misspelling
/// (distance at most a third of the word's length, at least 1, at most 4); first one wins a tie.
std::optional<std::string> nearest_word(std::string_view word,
                                        std::span<const std::string> candidates);

/// Whole-string integer in [low, high]; nothing else is accepted.
std::optional<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high);

/// Digits with an optional K, M or G (powers of 1024), as bytes.
std::optional<int64_t> parse_size(std::string_view text);

/// Whole-string finite decimal number in [low, high].
std::optional<double> parse_number(std::string_view text, double low, double high);

/// `text` as JSON writes it: in quotes and on one line; what is no UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);

/// What an operation can be called: 1 to kLongestName bytes, none of them a control character.
inline constexpr size_t kLongestName = 4096;
bool is_operation_name(std::string_view text);
/// A name for a message: as json_string(), and only its beginning if it is longer than any name.
std::string shown_name(std::string_view name);

/// What stands in a sentence: the beginning of `text`, of at most `longest` bytes, on one line;
/// control characters, and what is no UTF-8, become blanks.
std::string one_line(std::string_view text, size_t longest);

std::vector<std::string> split_text(std::string_view text, char separator);

/// XXH3, 64 bits.
uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t hash_text(std::string_view text, uint64_t seed = 0);

}  // namespace tutti
