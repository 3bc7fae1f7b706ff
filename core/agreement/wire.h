#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/little_endian.h"

namespace tutti {

/// Appends fixed-size little-endian fields to a message.
class WireWriter {
 public:
  template <WireNumber Number>
  WireWriter& put(Number number) {
    const auto bytes = to_little_endian(number);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  WireWriter& text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), data, data + text.size());
    return *this;
  }
  WireWriter& numbers(std::span<const int64_t> numbers) {
    put(static_cast<uint32_t>(numbers.size()));
    for (const int64_t number : numbers) put(number);
    return *this;
  }
  size_t size() const { return bytes_.size(); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Thrown if a peer sent an invalid message, and only by the readers of control messages. The type
/// separates the peer's mistake from this rank's own failure to carry out a message, which may have
/// the same error code.
class DamagedMessage : public Error {
 public:
  explicit DamagedMessage(const std::string& what) : Error(ErrorCode::corrupt_data, what) {}
};

/// Reads what WireWriter wrote. Throws DamagedMessage instead of reading past the end. Never
/// allocates more than the message could hold.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <WireNumber Number>
  Number get() {
    need(sizeof(Number));
    const auto number = from_little_endian<Number>(left_.data());
    left_ = left_.subspan(sizeof number);
    return number;
  }
  /// Reads an enumerator whose value is between 0 and count - 1.
  template <class Enum>
  Enum enumeration(int count) {
    const auto value = get<uint8_t>();
    if (value >= count) fail();
    return static_cast<Enum>(value);
  }
  std::string text() {
    const auto size = get<uint32_t>();
    need(size);
    std::string text(reinterpret_cast<const char*>(left_.data()), size);
    left_ = left_.subspan(size);
    return text;
  }
  std::vector<int64_t> numbers() {
    const auto count = get<uint32_t>();
    need(size_t{count} * sizeof(int64_t));
    std::vector<int64_t> numbers(count);
    for (auto& number : numbers) number = get<int64_t>();
    return numbers;
  }
  std::span<const std::byte> rest() const { return left_; }
  bool at_end() const { return left_.empty(); }

 private:
  [[noreturn]] static void fail() { throw DamagedMessage("a control message is damaged"); }
  void need(size_t bytes) const {
    if (left_.size() < bytes) fail();
  }
  std::span<const std::byte> left_;
};

}  // namespace tutti
