#include "tests/backends/conformance/on_device.h"

#include <algorithm>
#include <numeric>

#include "tests/backends/support/forwarding_backend.h"

namespace tutti::test {

namespace {

constexpr Device kFake{DeviceKind::fake, 0};

int64_t sum(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// The numbers of elements of the input and the output, as the table of Collective defines them.
std::pair<int64_t, int64_t> extents(const Collective& what, int rank) {
  const auto own = what.send_counts.size() > static_cast<size_t>(rank)
                       ? what.send_counts[static_cast<size_t>(rank)]
                       : 0;
  const bool is_root = what.root == rank;
  switch (what.kind) {
    case CollectiveKind::allreduce:
      return {what.send_counts[0], what.send_counts[0]};
    case CollectiveKind::reduce:
      return {what.send_counts[0], is_root ? what.send_counts[0] : 0};
    case CollectiveKind::broadcast:
      return {is_root ? what.send_counts[0] : 0, what.send_counts[0]};
    case CollectiveKind::allgather:
      return {own, sum(what.send_counts)};
    case CollectiveKind::gather:
      return {own, is_root ? sum(what.send_counts) : 0};
    case CollectiveKind::scatter:
      return {is_root ? sum(what.send_counts) : 0, own};
    case CollectiveKind::reduce_scatter:
      return {sum(what.send_counts), own};
    case CollectiveKind::alltoall:
      return {sum(what.send_counts), sum(what.recv_counts)};
    case CollectiveKind::send:
      return {what.send_counts[0], 0};
    case CollectiveKind::recv:
      return {0, what.send_counts[0]};
    case CollectiveKind::barrier:
      break;
  }
  return {0, 0};
}

class OnDeviceOperation final : public Operation {
 public:
  OnDeviceOperation(Backend& inner, const Collective& collective, const Launch& launch)
      : runtime_(device_runtime(DeviceKind::fake)),
        stream_(runtime_.create_stream(kFake)),
        ready_(runtime_.create_event(kFake)),
        collective_(collective),
        launch_(launch) {
    const auto [in, out] = extents(collective, inner.transport()->rank());
    const auto element = size_of(collective.dtype);
    in_bytes_ = static_cast<size_t>(in * element);
    out_bytes_ = static_cast<size_t>(out * element);
    input_ = memory(in_bytes_);
    output_ = memory(out_bytes_);
    host_.resize(std::max(in_bytes_, out_bytes_));
    // The input of a vetoed operation must not be read. The input of a bucket is packed by its
    // edges.
    const auto* source = collective.input;
    if (launch.edges.fill && launch.verdict == 0) {
      launch.edges.fill(launch.edges.self, {0, in}, host_.data());
      source = host_.data();
    } else if (launch.verdict != 0) {
      source = nullptr;
    }
    if (source != nullptr) runtime_.copy(input_, source, in_bytes_, stream_);
    runtime_.record(ready_, stream_);
    Launch device_launch = launch;
    device_launch.edges = {};
    device_launch.device = &device_;
    device_.ready = {&ready_, 1};
    Collective there = collective;
    there.input = static_cast<std::byte*>(input_);
    there.output = static_cast<std::byte*>(output_);
    if (launch.queue != kNoQueue) {
      // A queued operation is a bucket of one tensor, which is packed from other memory and
      // unpacked into other memory.
      pieces_[0] = {static_cast<std::byte*>(input_), collective.dtype, 0, in};
      pieces_[1] = {static_cast<std::byte*>(output_), collective.dtype, 0, out};
      bucket_ = memory(in_bytes_ + static_cast<size_t>(kLaneBytes));
      there.output = static_cast<std::byte*>(bucket_);
      device_.inputs = {&pieces_[0], 1};
      device_.outputs = {&pieces_[1], 1};
    }
    inner_ = inner.start(there, device_launch);
  }
  ~OnDeviceOperation() override {
    inner_.reset();
    runtime_.synchronize(stream_);
    for (void* memory : {input_, output_, bucket_}) runtime_.free(memory, kFake);
    runtime_.destroy_event(ready_);
    runtime_.destroy_stream(stream_);
  }

  OperationState advance() override {
    const auto state = inner_->advance();
    if (state == OperationState::done && out_bytes_ > 0) copy_back();
    return state;
  }
  void cancel() override { inner_->cancel(); }
  const Error* failure() const override { return inner_->failure(); }

 private:
  void* memory(size_t bytes) { return runtime_.allocate(bytes, kFake); }
  void copy_back() {
    auto* target = launch_.edges.drain ? host_.data() : collective_.output;
    runtime_.copy(target, output_, out_bytes_, stream_);
    runtime_.synchronize(stream_);
    if (launch_.edges.drain)
      launch_.edges.drain(launch_.edges.self,
                          {0, static_cast<int64_t>(out_bytes_) / size_of(collective_.dtype)},
                          host_.data(), {});
  }

  DeviceRuntime& runtime_;
  const StreamRef stream_;
  void* ready_;
  const Collective collective_;
  const Launch launch_;
  size_t in_bytes_ = 0, out_bytes_ = 0;
  void *input_ = nullptr, *output_ = nullptr, *bucket_ = nullptr;
  std::vector<std::byte> host_;
  Piece pieces_[2];
  DeviceLaunch device_;
  OperationPtr inner_;
};

class OnDevice final : public ForwardingBackend {
 public:
  explicit OnDevice(std::unique_ptr<Backend> inner)
      : ForwardingBackend(std::move(inner)), capabilities_(rest().capabilities()) {}

  Capabilities capabilities() const override { return capabilities_; }
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    if (!capabilities_.serves_on(kFake, collective.kind, collective.dtype, collective.op))
      return ForwardingBackend::start(collective, launch);
    return OperationPtr(new OnDeviceOperation(rest(), collective, launch));
  }

 private:
  const Capabilities capabilities_;
};

}  // namespace

std::unique_ptr<Backend> on_device(std::unique_ptr<Backend> backend) {
  return std::make_unique<OnDevice>(std::move(backend));
}

}  // namespace tutti::test
