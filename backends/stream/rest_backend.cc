#include "tutti/backends/stream/rest_backend.h"

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti {

std::vector<int> peers_of(const Context& context) {
  std::vector<int> peers;
  for (int peer = 0; peer < context.size; ++peer)
    if (peer != context.rank) peers.push_back(peer);
  return peers;
}

std::unique_ptr<Backend> make_rest_backend(const Context& context, std::string name) {
  const auto* hierarchical = context.plugin("hierarchical");
  if (hierarchical == nullptr || !hierarchical->open)
    throw Error(
        ErrorCode::unavailable,
        fmt::format("backend {} needs backend hierarchical, which this build does not have", name));
  return make_stream_backend(context, std::move(name),
                             hierarchical->open(context, peers_of(context)));
}

}  // namespace tutti
