#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

// Shared memory between ranks of one host, TCP between hosts: one transport over the mix, on which
// the two-level algorithms keep most of the traffic inside the hosts.

namespace tutti {

namespace {

using Channels = std::vector<std::unique_ptr<Channel>>;

const BackendPlugin& plugin(const Context& context, std::string_view name) {
  for (const auto* candidate : context.plugins)
    if (candidate->name == name && candidate->open) return *candidate;
  throw Error(
      ErrorCode::unavailable,
      fmt::format("backend hierarchical needs backend {}, which this build does not have", name));
}

// Half of the time that is left, so that the other half suffices for TCP.
Deadline half_way(Deadline deadline) {
  if (deadline.is_never()) return Deadline::after(30);
  const auto now = Clock::now();
  return Deadline::at(now + (deadline.when() - now) / 2);
}

std::string result_key(int rank) { return fmt::format("shm/{}", rank); }

// What a rank of this host says of its shared memory: empty, or what failed.
std::string result_of(const Context& context, int peer) {
  try {
    return context.store->get(result_key(peer), context.deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    throw Error(ErrorCode::timeout,
                fmt::format("rank {} waited in vain for rank {} on its own host to open shared "
                            "memory; check that it still runs",
                            context.rank, peer))
        .with_rank(peer);
  }
}

// Channels in shared memory to the other ranks of this host; nothing if any rank of the host could
// not make them all. Every one of these ranks comes to the same answer, because each tells the
// others its own result and then looks at all of them.
std::optional<Channels> open_shared_memory(const Context& context, const std::vector<int>& peers) {
  auto hurried = context;
  hurried.deadline = half_way(context.deadline);
  Channels channels;
  std::string failure;
  try {
    channels = plugin(context, "shm").open(hurried, peers);
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
                fmt::format("{} share host {} but not its memory, and use TCP instead: rank {} "
                            "saw: {}",
                            format_rank_set(ranks),
                            context.places[static_cast<size_t>(context.rank)].host_name,
                            first_failed, failure));
  }
  return {};
}

Channels open(const Context& outer, std::span<const int> peers) {
  auto context = outer;
  context.store = make_prefix_store(outer.store, "hierarchical/");  // apart from a plain shm or tcp
  const auto hosts = context.hosts();
  const auto host_of = [&](int rank) { return hosts[static_cast<size_t>(rank)]; };
  std::vector<int> near, far;
  for (const int peer : peers)
    (host_of(peer) == host_of(context.rank) ? near : far).push_back(peer);
  std::sort(near.begin(), near.end());

  std::optional<Channels> channels;
  if (!near.empty()) channels = open_shared_memory(context, near);
  if (!channels) {
    far.insert(far.end(), near.begin(), near.end());
    channels.emplace(static_cast<size_t>(context.size));
  }
  if (!far.empty()) {
    auto sockets = plugin(context, "tcp").open(context, far);
    for (const int peer : far)
      (*channels)[static_cast<size_t>(peer)] = std::move(sockets[static_cast<size_t>(peer)]);
  }
  return std::move(*channels);
}

std::unique_ptr<Backend> connect(const Context& context) {
  std::vector<int> others;
  for (int rank = 0; rank < context.size; ++rank)
    if (rank != context.rank) others.push_back(rank);
  return make_stream_backend(context, "hierarchical", open(context, others));
}

}  // namespace

extern const BackendPlugin hierarchical_backend;
const BackendPlugin hierarchical_backend = {
    .name = "hierarchical",
    .summary = "shared memory within a host, TCP between hosts",
    .connect = connect,
    .open = open,
};

}  // namespace tutti
