#include "tutti/core/life/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <optional>

#include "tutti/base/text.h"
#include "tutti/core/life/communicator_state.h"

namespace tutti {

namespace {

void check_overlap(std::string_view name, const TensorView& input, const TensorView& output,
                   std::optional<int64_t> in_place_at) {
  const std::less<const std::byte*> before;
  const auto *one = input.data(), *other = output.data();
  if (input.device() != output.device() || input.bytes() == 0 || output.bytes() == 0) return;
  if (!before(one, other + output.bytes()) || !before(other, one + input.bytes())) return;
  if (in_place_at && other - one == *in_place_at) return;
  throw refused(name, fmt::format("input and output share memory; give two tensors{}",
                                  in_place_at ? ", or this rank's part of the longer one" : ""));
}

}  // namespace

int64_t rows_of(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }

void check_alike(std::string_view name, const TensorView& input, const TensorView& output) {
  if (input.shape() != output.shape() || input.dtype() != output.dtype())
    throw refused(name, fmt::format("input {}{} and output {}{} must be alike",
                                    to_string(input.dtype()), input.shape().to_string(),
                                    to_string(output.dtype()), output.shape().to_string()));
  if (layout_of(input) != layout_of(output))
    throw refused(name,
                  fmt::format("input with strides [{}] and output with strides [{}] must be "
                              "alike",
                              fmt::join(input.strides(), ","), fmt::join(output.strides(), ",")));
}

void check_row_type(std::string_view name, const TensorView& input, const TensorView& output) {
  if (input.dtype() == output.dtype() && input.shape().with_rows(0) == output.shape().with_rows(0))
    return;
  throw refused(name,
                fmt::format("input {}{} and output {}{} must be alike but for the first extent",
                            to_string(input.dtype()), input.shape().to_string(),
                            to_string(output.dtype()), output.shape().to_string()));
}

std::vector<int64_t> checked_rows(std::string_view name, std::span<const int64_t> rows, int size) {
  if (!rows.empty() && static_cast<int>(rows.size()) != size)
    throw refused(name, fmt::format("{} were given for {}",
                                    format_count(static_cast<int64_t>(rows.size()), "row count"),
                                    format_count(size, "rank")));
  for (const int64_t count : rows)
    if (count < 0)
      throw refused(name, fmt::format("rows [{}] hold a negative count", fmt::join(rows, ",")));
  return {rows.begin(), rows.end()};
}

void check_apart(std::string_view name, const TensorView& input, const TensorView& output,
                 int64_t in_place_at) {
  check_overlap(name, input, output, in_place_at);
}

void check_apart(std::string_view name, const TensorView& input, const TensorView& output) {
  check_overlap(name, input, output, {});
}

}  // namespace tutti
