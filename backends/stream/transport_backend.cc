#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "tutti/backends/backend.h"
#include "tutti/base/error.h"
#include "tutti/collectives/chooser.h"

namespace tutti {

namespace {

int count_hosts(const Context& context) {
  const auto hosts = context.hosts();
  return hosts.empty() ? 1 : 1 + *std::max_element(hosts.begin(), hosts.end());
}

/// Runs our schedules over a Transport. The chooser picks a schedule, and the executor runs it.
class TransportBackend final : public Backend {
 public:
  TransportBackend(const Context& context, std::string name, std::unique_ptr<Transport> transport)
      : transport_(std::move(transport)),
        chooser_(context.algorithms, Determinism::fastest, context.thresholds),
        determinism_(context.determinism),
        host_count_(count_hosts(context)),
        executor_(*transport_, context.hosts(), context.executor) {
    capabilities_.name = std::move(name);
    capabilities_.across_hosts = host_count_ > 1;
  }

  bool progress() override { return transport_->progress(); }
  bool arm() override { return transport_->arm(); }
  int descriptor() const override { return transport_->descriptor(); }
  void abort(const Error& error) noexcept override { transport_->abort(error); }

  Capabilities capabilities() const override { return capabilities_; }
  Transport* transport() override { return transport_.get(); }
  TransportCounters counters() override {
    auto counters = transport_->counters();
    counters.allocations += executor_.allocations();
    return counters;
  }
  std::string_view algorithm(const Collective& collective) const override {
    return choose(collective).name;
  }

  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    if (device.kind != DeviceKind::cpu)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("backend {} keeps its buckets in host memory, not on {}; use a "
                              "backend for that device",
                              capabilities_.name, to_string(device)));
    try {
      return transport_->allocate(bytes);
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::out_of_memory,
                  fmt::format("backend {} cannot get {} bytes for a bucket; lower "
                              "TUTTI_FUSION_BYTES, or free memory",
                              capabilities_.name, bytes));
    }
  }

  bool packs_itself(const Collective& collective, const Launch& launch) const override {
    return collective.kind == CollectiveKind::allreduce && launch.edges.drain != nullptr;
  }

  OperationPtr start(const Collective& collective, const Launch& launch) override {
    if (!capabilities_.serves(collective.kind, collective.dtype, collective.op))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} with op {} cannot be applied to {}", to_string(collective.kind),
                              to_string(collective.op), to_string(collective.dtype)));
    return executor_.start(choose(collective), collective, launch);
  }
  Traffic predict(const Collective& collective, const Launch& launch) override {
    return executor_.predict(choose(collective), collective, launch);
  }

 private:
  const Algorithm& choose(const Collective& collective) const {
    return chooser_.choose({collective.kind, agreed_bytes(collective), transport_->size(),
                            host_count_, determinism_, sums_of(collective)});
  }

  const std::unique_ptr<Transport> transport_;
  const Chooser chooser_;
  const Determinism determinism_;
  const int host_count_;
  Executor executor_;
  Capabilities capabilities_;
};

}  // namespace

std::unique_ptr<Backend> make_transport_backend(const Context& context, std::string name,
                                                std::unique_ptr<Transport> transport) {
  return std::make_unique<TransportBackend>(context, std::move(name), std::move(transport));
}

std::unique_ptr<Backend> make_stream_backend(const Context& context, std::string name,
                                             std::vector<std::unique_ptr<Channel>> channels) {
  return make_transport_backend(context, std::move(name),
                                make_stream_transport(context.rank, std::move(channels)));
}

}  // namespace tutti
