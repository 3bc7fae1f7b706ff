#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/hierarchical/device_levels.h"
#include "tutti/backends/hierarchical/mixed_transport.h"
#include "tutti/backends/network/network_probe.h"
#include "tutti/backends/stream/rest_backend.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

// One backend connects the ranks of each host (shared memory), and another connects the hosts
// (TCP). One transport covers both. The two-level algorithms keep most of the traffic within the
// hosts. A name such as shm+ucx selects the two backends.

namespace tutti {

namespace {

using Channels = std::vector<std::unique_ptr<Channel>>;

Levels levels(const Context& context) {
  return levels_of(context.name).value_or(Levels{"shm", "tcp"});
}

const BackendPlugin& plugin(const Context& context, std::string_view name) {
  if (const auto* found = context.plugin(name); found != nullptr && !levels_of(name)) return *found;
  throw Error(
      ErrorCode::unavailable,
      fmt::format("backend {} needs backend \"{}\", which is not there", context.name, name));
}

const BackendPlugin& channels_of(const Context& context, std::string_view name) {
  const auto& found = plugin(context, name);
  if (found.open) return found;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("backend {} has no channels for the ranks of one host in {}; use "
                          "shm+{}",
                          name, context.name, levels(context).cross));
}

// Returns the time at which half of the remaining time has passed. The other half is left for the
// other backend.
Deadline half_way(Deadline deadline) {
  if (deadline.is_never()) return Deadline::after(30);
  const auto now = Clock::now();
  return Deadline::at(now + (deadline.when() - now) / 2);
}

std::string result_key(int rank) { return fmt::format("near/{}", rank); }

// Returns what a rank of this host has published about opening its shared memory: the reason of a
// failure, or an empty text.
std::string result_of(const Context& context, int peer) {
  try {
    return context.store->get(result_key(peer), context.deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    throw Error(ErrorCode::timeout,
                fmt::format("rank {} waited without success for rank {} on its own host to open "
                            "shared memory; check that it still runs",
                            context.rank, peer))
        .with_rank(peer);
  }
}

// Opens channels in shared memory to the other ranks of this host. Returns nothing if any rank of
// the host could not open all of its channels. Each rank publishes its own result and reads all
// results, so all ranks of the host decide the same.
std::optional<Channels> open_shared_memory(const Context& context, const std::vector<int>& peers) {
  auto hurried = context;
  hurried.deadline = half_way(context.deadline);
  Channels channels;
  std::string failure;
  try {
    channels = channels_of(context, levels(context).inner).open(hurried, peers);
  } catch (const Error& error) {
    failure = error.what();
  }
  context.store->set(result_key(context.rank), failure);

  int first_failed = failure.empty() ? -1 : context.rank;
  for (const int peer : peers) {
    const auto result = result_of(context, peer);
    if (result.empty() || (first_failed >= 0 && first_failed < peer)) continue;
    first_failed = peer;
    failure = result;
  }
  if (first_failed < 0) return channels;
  if (context.log && context.rank < peers.front()) {
    auto ranks = peers;
    ranks.insert(ranks.begin(), context.rank);
    context.log(LogLevel::warning,
                fmt::format("{} share host {} but not its memory, and use {} instead: rank {} "
                            "saw: {}",
                            format_rank_set(ranks),
                            context.places[static_cast<size_t>(context.rank)].host_name,
                            levels(context).cross, first_failed, failure));
  }
  return {};
}

// Returns a context whose keys in the store differ from those of the two backends used alone.
Context own_context(const Context& outer) {
  auto context = outer;
  context.store = make_prefix_store(outer.store, "hierarchical/");
  return context;
}

// Returns the peers on this host, in ascending order.
std::vector<int> near_ranks(const Context& context, std::span<const int> peers) {
  const auto hosts = context.hosts();
  std::vector<int> near;
  for (const int peer : peers)
    if (hosts[static_cast<size_t>(peer)] == hosts[static_cast<size_t>(context.rank)])
      near.push_back(peer);
  std::sort(near.begin(), near.end());
  return near;
}

// Opens channels for both levels.
Channels open(const Context& outer, std::span<const int> peers) {
  const auto context = own_context(outer);
  const auto near = near_ranks(context, peers);
  std::optional<Channels> channels;
  if (!near.empty()) channels = open_shared_memory(context, near);
  if (!channels) channels.emplace(static_cast<size_t>(context.size));
  std::vector<int> far;
  for (const int peer : peers)
    if (!(*channels)[static_cast<size_t>(peer)]) far.push_back(peer);
  if (!far.empty()) {
    auto sockets = plugin(context, levels(context).cross).open(context, far);
    for (const int peer : far)
      (*channels)[static_cast<size_t>(peer)] = std::move(sockets[static_cast<size_t>(peer)]);
  }
  return std::move(*channels);
}

std::unique_ptr<Transport> near_transport(const Context& context, const std::vector<int>& ranks,
                                          Channels channels) {
  Channels near;
  for (const int rank : ranks) near.push_back(std::move(channels[static_cast<size_t>(rank)]));
  const auto own = std::find(ranks.begin(), ranks.end(), context.rank) - ranks.begin();
  return make_stream_transport(static_cast<int>(own), std::move(near));
}

// Makes the backend over a transport that covers both levels. The user asked for two levels, so the
// two-level algorithms are used unless the measured network shows no gain from them.
std::unique_ptr<Backend> make_backend(const Context& context, std::string name,
                                      std::unique_ptr<Transport> transport) {
  auto probed = context;
  probed.thresholds = find_thresholds(context, *transport, TwoLevels::unless_alike);
  return make_transport_backend(probed, std::move(name), std::move(transport));
}

// Connects the hosts by a backend that has a Transport but no channels.
std::unique_ptr<Backend> connect_messages(const Context& outer, const BackendPlugin& cross) {
  const auto context = own_context(outer);
  auto ranks = near_ranks(context, peers_of(context));
  std::optional<Channels> channels;
  if (!ranks.empty()) channels = open_shared_memory(context, ranks);
  ranks.insert(std::lower_bound(ranks.begin(), ranks.end(), context.rank), context.rank);
  std::unique_ptr<Transport> near;
  if (channels) near = near_transport(context, ranks, std::move(*channels));
  // If all ranks are on one host, no rank needs the other backend. All ranks reach the same
  // decision.
  if (near && static_cast<int>(ranks.size()) == context.size)
    return make_transport_backend(context, context.name, std::move(near));
  return make_backend(context, context.name,
                      std::make_unique<MixedTransport>(std::move(near), std::move(ranks),
                                                       cross.transport(context)));
}

std::unique_ptr<Backend> connect(const Context& context);

// Connects `control`, the backend for host memory and messages, if the inner backend works on
// devices. It uses channels between the hosts too, because the kernel limits how deeply poll
// descriptors nest.
std::unique_ptr<Backend> connect_control(const Context& outer) {
  auto context = outer;
  context.name = "shm+tcp";
  context.inheritance = nullptr;
  return connect(context);
}

std::unique_ptr<Backend> connect(const Context& context) {
  const auto& cross = plugin(context, levels(context).cross);
  const auto& inner = plugin(context, levels(context).inner);
  if (inner.works_on_devices && cross.works_on_devices)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("backend {} works on devices and cannot be the level between hosts of "
                            "{}; use {}+tcp, or {} alone",
                            cross.name, context.name, inner.name, cross.name));
  if (inner.works_on_devices)
    return connect_device_levels(context, inner, cross, [&] { return connect_control(context); });
  if (!cross.open && !cross.transport)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("backend {} runs whole collectives and offers no messages, so {} cannot "
                    "use it between hosts; use {}+tcp, or {} alone",
                    cross.name, context.name, levels(context).inner, cross.name));
  // Every rank checks that the inner backend has channels, even a rank without peers on its host.
  channels_of(context, levels(context).inner);
  if (!cross.open) return connect_messages(context, cross);
  return make_backend(context, levels_of(context.name) ? context.name : "hierarchical",
                      make_stream_transport(context.rank, open(context, peers_of(context))));
}

}  // namespace

extern const BackendPlugin hierarchical_backend;
const BackendPlugin hierarchical_backend = {
    .name = "hierarchical",
    .summary = "shared memory within a host, TCP between hosts (shm+ucx: UCX between hosts)",
    .connect = connect,
    .open = open,
};

}  // namespace tutti
