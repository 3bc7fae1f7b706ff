#include "tutti/backends/hierarchical/device_levels.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tutti/backends/hierarchical/device_operation.h"
#include "tutti/backends/stream/joint_transport.h"
#include "tutti/base/error.h"

namespace tutti {

namespace {

// Returns the ranks of this host.
const std::vector<int>& inner_ranks(const LevelsGrid& grid) {
  return grid.ranks[static_cast<size_t>(grid.host)];
}

// Returns one rank per host: the rank whose number on its host equals this rank's number.
std::vector<int> cross_ranks(const LevelsGrid& grid) {
  std::vector<int> ranks;
  for (int host = 0; host < static_cast<int>(grid.ranks.size()); ++host)
    ranks.push_back(grid.of(host));
  return ranks;
}

// Returns the ranks of all hosts, or nothing if the hosts have unequal numbers of ranks.
std::optional<LevelsGrid> grid_of(const Context& context) {
  const auto host_of = context.hosts();
  LevelsGrid grid;
  for (int rank = 0; rank < context.size; ++rank) {
    const auto host = static_cast<size_t>(host_of[static_cast<size_t>(rank)]);
    if (host == grid.ranks.size()) grid.ranks.emplace_back();
    grid.ranks[host].push_back(rank);
  }
  for (const auto& host : grid.ranks)
    if (host.size() != grid.ranks.front().size()) return {};
  grid.host = host_of[static_cast<size_t>(context.rank)];
  const auto& own = inner_ranks(grid);
  grid.number = static_cast<int>(std::find(own.begin(), own.end(), context.rank) - own.begin());
  return grid;
}

Context context_among(const Context& whole, const std::vector<int>& ranks, std::string_view name) {
  auto context = whole;
  context.name = name;
  context.rank =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), whole.rank) - ranks.begin());
  context.size = static_cast<int>(ranks.size());
  context.places.clear();
  for (const int rank : ranks) context.places.push_back(whole.places[static_cast<size_t>(rank)]);
  context.store = make_prefix_store(whole.store, fmt::format("levels/{}/{}/", name, ranks.front()));
  context.algorithms.clear();
  context.inheritance = nullptr;
  return context;
}

// Publishes this rank's failure (empty: none) and reads the failures of all ranks. If any rank
// failed, all ranks throw. So no rank waits for a rank that has failed.
void announce(const Context& context, const std::string& failure) {
  const auto key = [](int rank) { return fmt::format("levels/{}", rank); };
  context.store->set(key(context.rank), failure);
  for (int rank = 0; rank < context.size; ++rank) {
    const auto heard = context.store->get(key(rank), context.deadline);
    if (heard.empty()) continue;
    throw Error(ErrorCode::unavailable,
                heard.starts_with("rank ")
                    ? fmt::format("on host {}: {}",
                                  context.places[static_cast<size_t>(rank)].host_name, heard)
                    : fmt::format("rank {}: {}", rank, heard))
        .with_rank(rank);
  }
}

class DeviceLevels final : public Backend {
 public:
  DeviceLevels(const Context& context, LevelsGrid grid, std::unique_ptr<Backend> inner,
               std::unique_ptr<Backend> cross, std::unique_ptr<Backend> control)
      : transport_(parts_of(grid, *inner, *cross, *control)),
        capabilities_(describe(context.name, grid, *inner, *cross, *control)) {
    place_.device = capabilities_.devices.front().device;
    place_.runtime = &device_runtime(place_.device.kind);
    place_.grid = std::move(grid);
    place_.size = context.size;
    for (const auto* backend : {inner.get(), cross.get(), control.get()})
      poller_.watch(backend->descriptor(), EPOLLIN);
    poller_.watch(place_.bell->bell.descriptor(), EPOLLIN);
    place_.inner = std::move(inner);
    place_.cross = std::move(cross);
    place_.control = std::move(control);
    for (auto& streams : streams_)
      streams = {place_.runtime->create_stream(place_.device),
                 place_.runtime->create_stream(place_.device)};
  }
  ~DeviceLevels() override {
    for (const auto& backend : {&place_.inner, &place_.cross, &place_.control})
      poller_.forget((*backend)->descriptor());
    auto& runtime = *place_.runtime;
    for (const auto& streams : streams_) {
      runtime.destroy_stream(streams.packing);
      runtime.destroy_stream(streams.copying);
    }
    for (const auto& scratch : place_.free) {
      runtime.free_host(scratch->pinned);
      runtime.give_back_word(scratch->word);
      runtime.destroy_event(scratch->event);
    }
  }

  // `control` is progressed last. A peer that leaves reports this through `control` before it
  // closes the other backends.
  bool progress() override {
    place_.bell->silence();
    bool moved = place_.inner->progress();
    moved |= place_.cross->progress();
    moved |= place_.control->progress();
    if (place_.is_aborted.load()) return moved;
    for (auto* operation : place_.running) moved |= operation->step();
    return moved;
  }
  bool arm() override {
    return place_.inner->arm() && place_.cross->arm() && place_.control->arm() &&
           !place_.bell->has_news.load(std::memory_order_acquire);
  }
  int descriptor() const override { return poller_.descriptor(); }
  void abort(const Error& error) noexcept override {
    place_.is_aborted = true;
    place_.control->abort(error);
    place_.inner->abort(error);
    place_.cross->abort(error);
  }

  Capabilities capabilities() const override { return capabilities_; }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    return (device == place_.device ? place_.inner : place_.control)->allocate(bytes, device);
  }
  bool shares(const std::byte* data, size_t bytes) const override {
    return place_.control->shares(data, bytes);
  }
  bool packs_itself(const Collective& collective, const Launch& launch) const override {
    return launch.device == nullptr && place_.control->packs_itself(collective, launch);
  }
  bool works_elsewhere() const override {
    return place_.cross->works_elsewhere() || place_.control->works_elsewhere();
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    if (launch.device == nullptr) return place_.control->start(collective, launch);
    if (!capabilities_.serves_on(place_.device, collective.kind, collective.dtype, collective.op))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} has no {} of {} with {} on {}", capabilities_.name,
                              to_string(collective.kind), to_string(collective.dtype),
                              to_string(collective.op), to_string(place_.device)));
    const auto& streams = streams_[static_cast<size_t>(launch.queue - kNoQueue)];
    return OperationPtr(new LevelsOperation(place_, streams, collective, launch));
  }
  Traffic predict(const Collective& collective, const Launch& launch) override {
    return launch.device == nullptr ? place_.control->predict(collective, launch) : Traffic{};
  }
  std::string_view algorithm(const Collective& collective) const override {
    return place_.control->algorithm(collective);
  }
  std::vector<int> missing(int queue) const override { return place_.control->missing(queue); }
  Transport* transport() override { return &transport_; }
  TransportCounters counters() override {
    auto sum = place_.control->counters();
    auto across = place_.cross->counters();
    const auto to_cross = std::exchange(across.bytes_to_peer, {});
    const auto ranks = cross_ranks(place_.grid);
    add(sum, across);
    sum.bytes_to_peer.resize(static_cast<size_t>(place_.size));
    for (size_t i = 0; i < to_cross.size(); ++i)
      sum.bytes_to_peer[static_cast<size_t>(ranks[i])] += to_cross[i];
    return sum;
  }
  // The new communicator inherits only from the inner backend of this host.
  std::shared_ptr<Inheritance> split(const Context& context, int color, int key) override {
    return place_.inner->split(context_among(context, inner_ranks(place_.grid), "inner"), color,
                               key);
  }

 private:
  static std::vector<JointTransport::Part> parts_of(const LevelsGrid& grid, Backend& inner,
                                                    Backend& cross, Backend& control) {
    std::vector<JointTransport::Part> parts{{control.transport()}};
    if (auto* transport = cross.transport()) parts.push_back({transport, cross_ranks(grid)});
    if (auto* transport = inner.transport()) parts.push_back({transport, inner_ranks(grid)});
    return parts;
  }
  // The result offers a device service only if both levels offer it.
  static Capabilities describe(const std::string& name, const LevelsGrid& grid,
                               const Backend& inner, const Backend& cross, const Backend& control) {
    const auto near = inner.capabilities(), far = cross.capabilities();
    auto capabilities = control.capabilities();
    capabilities.name = name;
    capabilities.across_hosts = true;
    capabilities.route = fmt::format("{} within a host, {} between hosts", near.route,
                                     far.route.empty() ? far.name : far.route);
    std::vector<CollectiveKind> kinds{CollectiveKind::allreduce, CollectiveKind::broadcast};
    if (grid.is_in_blocks())
      kinds.insert(kinds.end(), {CollectiveKind::allgather, CollectiveKind::reduce_scatter});
    for (auto service : near.devices) {
      std::erase_if(service.kinds, [&](CollectiveKind kind) {
        return std::find(kinds.begin(), kinds.end(), kind) == kinds.end();
      });
      if (service.kinds.empty()) continue;
      std::erase_if(service.dtypes, [&](DataType dtype) {
        return !far.serves(service.kinds.front(), dtype, ReduceOp::sum);
      });
      // Sums of integers pass between the levels as integers of the same type. The sum of an
      // average may not fit into that type. So averages of integers are not offered.
      const auto average = std::find(service.ops.begin(), service.ops.end(), ReduceOp::average);
      if (average != service.ops.end()) {
        service.ops.erase(average);
        std::vector<DataType> floats;
        std::copy_if(service.dtypes.begin(), service.dtypes.end(), std::back_inserter(floats),
                     is_float);
        capabilities.devices.push_back(
            {service.device, service.kinds, std::move(floats), {ReduceOp::average}});
      }
      capabilities.devices.push_back(std::move(service));
    }
    return capabilities;
  }

  JointTransport transport_;
  const Capabilities capabilities_;
  LevelsPlace place_;
  // index 0: the streams of operations without a queue; index q + 1: the streams of queue q
  LevelsStreams streams_[kQueues + 1];
  Poller poller_;
};

}  // namespace

std::unique_ptr<Backend> connect_device_levels(
    const Context& context, const BackendPlugin& inner, const BackendPlugin& cross,
    const std::function<std::unique_ptr<Backend>()>& connect_control) {
  auto grid = grid_of(context);
  if (!grid) {
    if (context.rank == 0 && context.log)
      context.log(LogLevel::warning,
                  fmt::format("backend {}: the hosts have unequal numbers of ranks, so what lives "
                              "on devices goes through host memory; start equally many on each",
                              context.name));
    return connect_control();
  }
  auto near = context_among(context, inner_ranks(*grid), inner.name);
  near.inheritance = context.inheritance;
  if (grid->ranks.size() == 1) return inner.connect(near);
  std::unique_ptr<Backend> within;
  std::string failure;
  try {
    within = inner.connect(near);
  } catch (const Error& error) {
    failure = error.what();
  }
  announce(context, failure);
  auto between = cross.connect(context_among(context, cross_ranks(*grid), cross.name));
  return std::make_unique<DeviceLevels>(context, std::move(*grid), std::move(within),
                                        std::move(between), connect_control());
}

}  // namespace tutti
