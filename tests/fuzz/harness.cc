#include "tests/fuzz/harness.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "tutti/base/error.h"

namespace {

// The bytes that operator new has given to this thread since a parse began, minus those freed.
thread_local int64_t held_bytes = 0;
thread_local int64_t most_held_bytes = 0;

}  // namespace

// Replaces operator new for the whole program, including the library, so that memory is counted in
// every build. The sanitizers see the malloc below. (std::stable_sort calls the version that does
// not throw.)
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  void* memory = std::malloc(std::max<size_t>(bytes, 1));
  if (memory == nullptr) return nullptr;
  held_bytes += static_cast<int64_t>(::malloc_usable_size(memory));
  most_held_bytes = std::max(most_held_bytes, held_bytes);
  return memory;
}
void* operator new(size_t bytes) {
  void* memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) held_bytes -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace tutti::fuzz {

std::vector<Harness>& harnesses() {
  static std::vector<Harness> all;
  return all;
}

bool accepts(const Harness& harness, std::string_view input) {
  const std::unique_ptr<char[]> copy(new char[input.size()]);
  std::copy(input.begin(), input.end(), copy.get());
  held_bytes = most_held_bytes = 0;
  bool accepted = false;
  try {
    accepted = harness.parse({copy.get(), input.size()});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw Finding(error.what());
  }
  const auto bound = harness.most_bytes + harness.most_bytes_per_byte * input.size();
  if (most_held_bytes > static_cast<int64_t>(bound))
    throw Finding(fmt::format("{} held {} bytes for an input of {}; at most {} are allowed",
                              harness.name, most_held_bytes, input.size(), bound));
  return accepted;
}

uint64_t take_number_of(std::string_view& input, size_t bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < std::min(bytes, input.size()); ++i)
    number |= uint64_t{static_cast<unsigned char>(input[i])} << (8 * i);
  input.remove_prefix(std::min(bytes, input.size()));
  return number;
}

std::string_view take_part(std::string_view& input) {
  const auto told = take_number_of(input, 2);
  const auto length = std::min<uint64_t>(told, input.size());
  const auto part = input.substr(0, length);
  input.remove_prefix(length);
  return part;
}

std::string as_part(std::string_view text) {
  std::string part;
  part += static_cast<char>(text.size() & 0xff);
  part += static_cast<char>(text.size() >> 8);
  return part += text;
}

}  // namespace tutti::fuzz
