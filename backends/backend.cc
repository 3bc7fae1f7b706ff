#include "tutti/backends/backend.h"

#include <algorithm>

#include "tutti/kernels/reduce.h"

namespace tutti {

std::vector<int> Context::hosts() const {
  std::vector<int> numbers(static_cast<size_t>(size), 0);
  std::vector<std::string_view> seen;
  for (size_t rank = 0; rank < places.size() && rank < numbers.size(); ++rank) {
    const auto found = std::find(seen.begin(), seen.end(), places[rank].host);
    numbers[rank] = static_cast<int>(found - seen.begin());
    if (found == seen.end()) seen.push_back(places[rank].host);
  }
  return numbers;
}

bool Capabilities::serves(CollectiveKind kind, DataType dtype, ReduceOp op) const {
  switch (kind) {
    case CollectiveKind::allreduce:
    case CollectiveKind::reduce:
    case CollectiveKind::reduce_scatter:
      return is_valid(dtype) && can_reduce(dtype, op);
    default:
      return is_valid(dtype);
  }
}

}  // namespace tutti
