#include "tutti/backends/backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
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

const BackendPlugin* Context::plugin(std::string_view called) const {
  const std::string_view wanted = levels_of(called) ? "hierarchical" : called;
  for (const auto* candidate : plugins)
    if (candidate->name == wanted) return candidate;
  return nullptr;
}

const std::string& Context::setting(std::string_view variable) const {
  const auto found = settings.find(variable);
  if (found != settings.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, value] : settings) names.push_back(name);
  const auto nearest = nearest_word(variable, names);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a backend asks for {}, which is not a setting of backends{}", variable,
                          nearest ? fmt::format(" (did it mean {}?)", *nearest) : ""));
}

std::optional<Levels> levels_of(std::string_view name) {
  const auto plus = name.find('+');
  if (plus == name.npos) return {};
  return Levels{name.substr(0, plus), name.substr(plus + 1)};
}

void add(TransportCounters& sum, const TransportCounters& more) {
  sum.messages_sent += more.messages_sent;
  sum.bytes_sent += more.bytes_sent;
  sum.control_messages_sent += more.control_messages_sent;
  sum.control_bytes_sent += more.control_bytes_sent;
  sum.copied_bytes += more.copied_bytes;
  sum.allocations += more.allocations;
  sum.bytes_to_peer.resize(std::max(sum.bytes_to_peer.size(), more.bytes_to_peer.size()));
  for (size_t peer = 0; peer < more.bytes_to_peer.size(); ++peer)
    sum.bytes_to_peer[peer] += more.bytes_to_peer[peer];
}

bool Capabilities::serves(CollectiveKind kind, DataType dtype, ReduceOp op) const {
  return is_valid(dtype) && (!reduces(kind) || can_reduce(dtype, op));
}

bool Capabilities::serves_on(Device device, CollectiveKind kind, DataType dtype,
                             ReduceOp op) const {
  const auto has = [](const auto& list, auto value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  return std::any_of(devices.begin(), devices.end(), [&](const DeviceService& service) {
    return service.device == device && has(service.kinds, kind) && has(service.dtypes, dtype) &&
           (!reduces(kind) || has(service.ops, op));
  });
}

}  // namespace tutti
