#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::fuzz {

/// A parser of foreign bytes, and inputs for it. Each harness is a file that defines one of these
/// through Registered. Both libFuzzer (fuzzer.cc) and the daily tests (mutations_test.cc) run it
/// through accepts().
struct Harness {
  std::string name;
  /// Gives the input to the parser. Returns true if the parser accepts it. False or a tutti::Error
  /// means that it refuses the input. Any other exception is a finding.
  bool (*parse)(std::string_view input);
  /// Returns inputs that the parser accepts, made by the library's own encoders.
  std::vector<std::string> (*seeds)();
  size_t longest = 4096;  // of an input, in bytes
  /// The most memory that a parse may hold at a time: a fixed number of bytes, plus a number for
  /// each byte of its input.
  size_t most_bytes = size_t{1} << 20;
  size_t most_bytes_per_byte = 64;
};

/// Returns all harnesses that are linked into this program.
std::vector<Harness>& harnesses();

struct Registered {
  explicit Registered(Harness harness) { harnesses().push_back(std::move(harness)); }
};

/// An error that no input may cause: an exception that is not a tutti::Error, a failed internal
/// check, memory beyond the harness's bound, or a result that contradicts the input.
class Finding : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Parses a copy of the input that ends where its memory ends. Throws a Finding, or any exception
/// of the parser that is not a tutti::Error.
bool accepts(const Harness& harness, std::string_view input);

/// Throws a Finding unless `holds`.
inline void require(bool holds, const char* what) {
  if (!holds) throw Finding(what);
}

/// Removes a number from the front of an input and returns it. Missing bytes are 0.
uint64_t take_number_of(std::string_view& input, size_t bytes);
/// Read and write an input of several texts, each after its length in two bytes. take_part()
/// accepts any input: if a text is cut off, it returns the rest.
std::string_view take_part(std::string_view& input);
std::string as_part(std::string_view text);

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace tutti::fuzz
