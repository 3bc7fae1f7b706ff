#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::fuzz {

/// A parser of bytes that others wrote, and inputs for it. Each harness is a file that defines one
/// of these through Registered; libFuzzer (fuzzer.cc) and the daily tests (mutations_test.cc) both
/// run it by accepts().
struct Harness {
  std::string name;
  /// Gives the input to the parser. True: the parser took it. False, or a tutti::Error: it refused
  /// it. Whatever else is thrown is a finding.
  bool (*parse)(std::string_view input);
  /// Inputs that the parser takes, made by the library's own encoders.
  std::vector<std::string> (*seeds)();
  size_t longest = 4096;  // input
  /// What a parse may hold in memory at once: so much, and so much for each byte of its input.
  size_t most_bytes = size_t{1} << 20;
  size_t most_bytes_per_byte = 64;
};

/// All that are linked into this program.
std::vector<Harness>& harnesses();

struct Registered {
  explicit Registered(Harness harness) { harnesses().push_back(std::move(harness)); }
};

/// What no input may bring about: an exception that is no tutti::Error, an internal check that
/// failed, memory beyond the harness's bound, a result that contradicts the input.
class Finding : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Parses a copy of the input that ends where its memory ends. Throws a Finding, or what the parser
/// threw that is no tutti::Error.
bool accepts(const Harness& harness, std::string_view input);

/// Throws a Finding unless `holds`.
inline void require(bool holds, const char* what) {
  if (!holds) throw Finding(what);
}

/// Takes a number off the front of an input; missing bytes are 0.
uint64_t take_number_of(std::string_view& input, size_t bytes);
/// Inputs that are several texts: each is preceded by its length in two bytes. Taking is total: of
/// a text that is cut off the rest is taken.
std::string_view take_part(std::string_view& input);
std::string as_part(std::string_view text);

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace tutti::fuzz
