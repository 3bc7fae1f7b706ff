#include "tutti/core/calls/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>

#include "tutti/base/text.h"
#include "tutti/core/calls/communicator_state.h"

namespace tutti {

namespace {

bool overlap(const TensorView& input, const TensorView& output) {
  const std::less<const std::byte*> before;
  const auto *one = input.data(), *other = output.data();
  if (input.device() != output.device() || input.bytes() == 0 || output.bytes() == 0) return false;
  return before(one, other + output.bytes()) && before(other, one + input.bytes());
}

Error shared_memory(std::string_view name, std::string_view instead) {
  return refused(name,
                 fmt::format("input and output share memory; give two tensors, or {}", instead));
}

void check_apart_on_device(std::string_view name, const TensorView& input,
                           const TensorView& output) {
  if (overlap(input, output))
    throw refused(name, fmt::format("input and output share memory on {}; give two tensors there",
                                    to_string(input.device())));
}

}  // namespace

int64_t rows_of(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }

void check_alike(std::string_view name, const TensorView& input, const TensorView& output) {
  if (input.shape() != output.shape() || input.dtype() != output.dtype())
    throw refused(name, fmt::format("input {}{} and output {}{} must have the same dtype and shape",
                                    to_string(input.dtype()), input.shape().to_string(),
                                    to_string(output.dtype()), output.shape().to_string()));
  if (layout_of(input) != layout_of(output))
    throw refused(
        name, fmt::format(
                  "input with strides [{}] and output with strides [{}] must have the same layout",
                  fmt::join(input.strides(), ","), fmt::join(output.strides(), ",")));
}

void check_row_type(std::string_view name, const TensorView& input, const TensorView& output) {
  if (input.dtype() == output.dtype() && input.shape().with_rows(0) == output.shape().with_rows(0))
    return;
  throw refused(name, fmt::format("input {}{} and output {}{} must have the same dtype and shape, "
                                  "except for the first extent",
                                  to_string(input.dtype()), input.shape().to_string(),
                                  to_string(output.dtype()), output.shape().to_string()));
}

void check_rows(std::string_view name, std::span<const int64_t> rows, int size) {
  if (!rows.empty() && static_cast<int>(rows.size()) != size)
    throw refused(name, fmt::format("{} were given for {}",
                                    format_count(static_cast<int64_t>(rows.size()), "row count"),
                                    format_count(size, "rank")));
  for (const int64_t count : rows)
    if (count < 0)
      throw refused(name, fmt::format("rows [{}] hold a negative count", fmt::join(rows, ",")));
}

std::vector<int64_t> checked_rows(std::string_view name, std::span<const int64_t> rows, int size) {
  check_rows(name, rows, size);
  return {rows.begin(), rows.end()};
}

void check_apart(std::string_view name, const TensorView& input, const TensorView& output,
                 int64_t in_place_at) {
  if (overlap(input, output) && output.data() - input.data() != in_place_at)
    throw shared_memory(name, "this rank's part of the longer one");
}

void check_disjoint(std::string_view name, const TensorView& input, const TensorView& output) {
  if (overlap(input, output))
    throw refused(name,
                  "what is sent and what is received share memory; give each memory of its own");
}

int64_t bytes_before(const Options& options, const TensorView& input,
                     std::span<const int64_t> rows) {
  int64_t before = 0;
  for (int rank = 0; rank < options.rank; ++rank)
    before += rows.empty() ? even_share(rows_of(input.shape()), rank, options.size)
                           : rows[static_cast<size_t>(rank)];
  return before * input.shape().row_count() * size_of(input.dtype());
}

void check_scattered(std::string_view name, const TensorView& input, const TensorView& output,
                     int64_t part_at) {
  if (!overlap(input, output) || output.data() - input.data() == part_at) return;
  // On a device, peers read the input while this rank already writes its output. So the output may
  // only be this rank's part of the input.
  if (input.device().kind != DeviceKind::cpu) throw shared_memory(name, "this rank's part of it");
  if (output.data() != input.data())
    throw shared_memory(name, "the beginning of the input, or this rank's part of it");
}

void check_part(std::string_view name, const TensorView& input, const TensorView& output) {
  if (!overlap(input, output)) return;
  const int64_t row = input.shape().row_count() * size_of(input.dtype());
  const int64_t at = input.data() - output.data();
  if (at < 0 || at + input.bytes() > output.bytes() || at % row != 0)
    throw shared_memory(name, "this rank's part of the longer one");
}

void check_gathered(std::string_view name, const TensorView& input, const TensorView& output) {
  if (input.device().kind != DeviceKind::cpu) return check_apart_on_device(name, input, output);
  check_part(name, input, output);
}

void check_exchanged(std::string_view name, const TensorView& input, const TensorView& output) {
  if (input.device().kind != DeviceKind::cpu) return check_apart_on_device(name, input, output);
  if (!overlap(input, output)) return;
  if (output.data() != input.data() || output.bytes() != input.bytes())
    throw shared_memory(name, "one of as many rows for both");
}

}  // namespace tutti
