#include "tests/simulation/contents.h"

#include <cstring>

#include "tests/simulation/random.h"

namespace tutti::simulation {

namespace {

template <class T>
void append_as(std::vector<std::byte>& bytes, T value) {
  const size_t before = bytes.size();
  bytes.resize(before + sizeof(T));
  std::memcpy(bytes.data() + before, &value, sizeof(T));
}

// Returns an integer of at most eleven bits as f16.
uint16_t half_of(int64_t value) {
  if (value == 0) return 0;
  const uint16_t sign = value < 0 ? 0x8000 : 0;
  auto rest = static_cast<uint32_t>(value < 0 ? -value : value);
  int exponent = 10;
  while (rest < 1024) rest <<= 1, --exponent;
  while (rest >= 2048) rest >>= 1, ++exponent;
  return static_cast<uint16_t>(sign | (exponent + 15) << 10 | (rest & 1023));
}

// Returns an integer of at most eight bits as bf16, the upper half of an f32.
uint16_t brain_of(int64_t value) {
  const auto as_float = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &as_float, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

bool is_unsigned(DataType dtype) {
  return dtype == DataType::u8 || dtype == DataType::u16 || dtype == DataType::u32 ||
         dtype == DataType::u64;
}

}  // namespace

int64_t value_of(const Operation& operation, int rank, int64_t index) {
  const uint64_t place = static_cast<uint64_t>(rank) << 32 | static_cast<uint64_t>(index);
  const uint64_t drawn = Random::mix(Random::mix(operation.contents + 1) ^ Random::mix(place + 77));
  if (operation.dtype == DataType::boolean) return static_cast<int64_t>(drawn & 1);
  if (!reduces(operation.kind)) return static_cast<int64_t>(drawn % 121);
  switch (operation.op) {
    case ReduceOp::sum:
      return static_cast<int64_t>(drawn % 5);
    case ReduceOp::average:  // divisible by up to five ranks
      return static_cast<int64_t>(drawn & 1) * 60;
    case ReduceOp::max:  // a 0 that a rank contributes by mistake would become the result
      return static_cast<int64_t>(drawn % 121) - (is_unsigned(operation.dtype) ? 0 : 121);
    case ReduceOp::product:
      return 1 + static_cast<int64_t>(drawn % 3);
    default:
      return static_cast<int64_t>(drawn % 121);
  }
}

void append(std::vector<std::byte>& bytes, DataType dtype, int64_t value) {
  switch (dtype) {
    case DataType::f64:
      return append_as(bytes, static_cast<double>(value));
    case DataType::f32:
      return append_as(bytes, static_cast<float>(value));
    case DataType::f16:
      return append_as(bytes, half_of(value));
    case DataType::bf16:
      return append_as(bytes, brain_of(value));
    default:
      break;
  }
  // An integer keeps its lowest bytes, which come first on all machines that Tutti runs on.
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), first, first + size_of(dtype));
}

std::vector<std::byte> fill_input(const Operation& operation, int rank) {
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<size_t>(operation.bytes()));
  for (int64_t i = 0; i < operation.count(); ++i)
    append(bytes, operation.dtype, value_of(operation, rank, i));
  return bytes;
}

}  // namespace tutti::simulation
