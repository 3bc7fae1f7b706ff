#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// Returns for example "0-2 5 7-9" for {0,1,2,5,7,8,9}, and "none" for no rank. `ranks` must
/// ascend.
std::string format_ranks(std::span<const int> ranks);

/// Returns for example "rank 3" or "ranks 0-2 5".
std::string format_rank_set(std::span<const int> ranks);

/// Returns for example "1 rank" or "3 ranks". The noun's plural must end in s.
std::string format_count(int64_t count, std::string_view noun);

/// Returns the candidate with the smallest edit distance to `word`; the first one wins a tie.
/// Returns nothing if the distance is too large for a misspelling. The limit is a third of the
/// word's length, but at least 1 and at most 4.
std::optional<std::string> nearest_word(std::string_view word,
                                        std::span<const std::string> candidates);

/// Parses an integer in [low, high]. The whole text must be the number.
std::optional<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high);

/// Parses digits with an optional K, M or G (powers of 1024) as a number of bytes.
std::optional<int64_t> parse_size(std::string_view text);

/// Parses a finite decimal number in [low, high]. The whole text must be the number.
std::optional<double> parse_number(std::string_view text, double low, double high);

/// Returns `text` as a JSON string: in quotes and on one line. Bytes that are not UTF-8 become
/// U+FFFD.
std::string json_string(std::string_view text);

/// Operation names have 1 to kLongestName bytes and no control characters.
inline constexpr size_t kLongestName = 4096;
bool is_operation_name(std::string_view text);
/// Returns a name for a message: like json_string(), but cut if it is longer than any valid name.
std::string shown_name(std::string_view name);

/// Returns the beginning of `text`, at most `longest` bytes, on one line, for use within a
/// sentence. Control characters, and bytes that are not UTF-8, become blanks.
std::string one_line(std::string_view text, size_t longest);

std::vector<std::string> split_text(std::string_view text, char separator);

/// Hashes with XXH3, 64 bits.
uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t hash_text(std::string_view text, uint64_t seed = 0);

}  // namespace tutti
