#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/network/network_probe.h"
#include "tutti/backends/stream/rest_backend.h"
#include "tutti/backends/tcp/connector.h"
#include "tutti/backends/tcp/striped_channel.h"

namespace tutti {

namespace {

std::vector<std::unique_ptr<Channel>> open_channels(const Context& context,
                                                    std::span<const int> peers) {
  const int lanes_each = std::stoi(context.setting("TUTTI_TCP_SOCKETS"));
  std::map<int, std::vector<Descriptor>> sockets;
  for (int lane = 0; lane < lanes_each; ++lane)
    for (auto& [rank, socket] : connect_peers(context, peers, lane))
      sockets[rank].push_back(std::move(socket));
  std::vector<std::unique_ptr<Channel>> channels(static_cast<size_t>(context.size));
  for (auto& [rank, lanes] : sockets) {
    auto& channel = channels[static_cast<size_t>(rank)];
    if (lanes.size() == 1)
      channel = std::make_unique<TcpChannel>(std::move(lanes.front()));
    else
      channel = std::make_unique<StripedChannel>(std::move(lanes));
  }
  return channels;
}

std::unique_ptr<Backend> connect(const Context& context) {
  auto transport = make_stream_transport(context.rank, open_channels(context, peers_of(context)));
  auto probed = context;
  probed.thresholds = find_thresholds(context, *transport, TwoLevels::where_they_pay);
  return make_transport_backend(probed, "tcp", std::move(transport));
}

}  // namespace

extern const BackendPlugin tcp_backend;
const BackendPlugin tcp_backend = {
    .name = "tcp",
    .summary = "a TCP connection for each pair of ranks, on one host or many",
    .connect = connect,
    .open = open_channels,
};

}  // namespace tutti
