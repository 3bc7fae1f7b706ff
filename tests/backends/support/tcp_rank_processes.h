#pragma once

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/network_namespaces.h"
#include "tutti/backends/backend.h"
#include "tutti/backends/store.h"
#include "tutti/base/descriptor.h"
#include "tutti/core/settings/option_table.h"

namespace tutti::test {

/// Ranks in processes on "hosts" that are network namespaces, with a TCP store on host 0.
class RankProcesses {
 public:
  /// Rank r runs on host layout[r].
  RankProcesses(NetworkNamespaces& hosts, std::vector<int> layout)
      : hosts_(hosts), layout_(std::move(layout)) {}
  RankProcesses& ipv6() { return ipv6_ = true, *this; }

  /// Runs `body` in each rank's process; every rank must return true. `meanwhile` runs in this
  /// process.
  void run(const std::function<bool(Context&)>& body,
           const std::function<void(Store&)>& meanwhile = {}) {
    constexpr int kStorePort = 7000;  // any port will do: the namespaces are new
    const std::string secret = "secret";
    const auto address = ipv6_ ? hosts_.address_ipv6(0) : hosts_.address(0);
    server_.reset();  // no thread of this process may exist when it forks
    std::vector<pid_t> children;
    for (size_t rank = 0; rank < layout_.size(); ++rank) {
      children.push_back(hosts_.start(layout_[rank], [&, rank] {
        Context context;
        context.rank = static_cast<int>(rank);
        context.size = static_cast<int>(layout_.size());
        context.secret = secret;
        context.deadline = Deadline::after(20);
        context.settings = backend_settings({});
        for (const int host : layout_) {
          const auto name = "host" + std::to_string(host);
          context.places.push_back({name, name, 0});
        }
        context.plugins = plugins_;
        context.store = connect_tcp_store(address, kStorePort, secret, context.deadline);
        return body(context) ? 0 : 1;
      }));
    }
    hosts_.within(0,
                  [&] { server_ = std::make_unique<TcpStoreServer>(address, kStorePort, secret); });
    if (meanwhile) meanwhile(*server_->local());
    for (const pid_t child : children) EXPECT_EQ(wait_for_child(child, 40), 0);
  }

  /// After run(): the store with all keys that the ranks have set.
  std::shared_ptr<Store> store() { return server_->local(); }

  RankProcesses& with(std::span<const BackendPlugin* const> plugins) {
    return plugins_ = plugins, *this;
  }

 private:
  NetworkNamespaces& hosts_;
  const std::vector<int> layout_;
  std::span<const BackendPlugin* const> plugins_;
  std::unique_ptr<TcpStoreServer> server_;
  bool ipv6_ = false;
};

/// Waits until every rank has called this with the same `place`. Then the key `place` exists for
/// anybody.
inline void meet(const Context& context, const std::string& place) {
  if (context.store->add(place + "/count", 1) == context.size) context.store->set(place, "all");
  context.store->get(place, context.deadline);
}

/// Prints `what` on standard error and returns false.
inline bool complain(const Context& context, std::string_view what) {
  std::fprintf(stderr, "rank %d: %.*s\n", context.rank, static_cast<int>(what.size()), what.data());
  return false;
}

inline std::vector<int> others(const Context& context) {
  std::vector<int> ranks;
  for (int rank = 0; rank < context.size; ++rank)
    if (rank != context.rank) ranks.push_back(rank);
  return ranks;
}

/// True if an allreduce over all ranks gives the sums, which f32 holds exactly, to the bit.
inline bool sums_are_right(Context& context, Backend& backend, int64_t count, uint64_t tag) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    values[static_cast<size_t>(i)] = static_cast<float>((i * 7 + context.rank * 13) % 1000);
  Collective collective;
  collective.kind = CollectiveKind::allreduce;
  collective.input = reinterpret_cast<const std::byte*>(values.data());
  collective.output = reinterpret_cast<std::byte*>(values.data());
  collective.send_counts = std::span(&count, 1);
  Launch launch;
  launch.tag = tag;
  const auto operation = backend.start(collective, launch);
  auto state = OperationState::pending;
  while ((state = operation->advance()) == OperationState::pending && !context.deadline.passed())
    if (!backend.progress() && backend.arm()) {
      Poller poller;
      poller.watch(backend.descriptor(), EPOLLIN);
      poller.wait(50);
    }
  if (state != OperationState::done) return complain(context, "the allreduce did not end");
  for (int64_t i = 0; i < count; ++i) {
    float expected = 0;
    for (int rank = 0; rank < context.size; ++rank)
      expected += static_cast<float>((i * 7 + rank * 13) % 1000);
    if (values[static_cast<size_t>(i)] != expected)
      return complain(context, "element " + std::to_string(i) + " is wrong");
  }
  return true;
}

}  // namespace tutti::test
