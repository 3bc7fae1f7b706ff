#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/base/descriptor.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// What wakes the engine when something happened on the device. Shared with host functions of
/// streams, which may come late.
struct DeviceBell {
  Bell bell;
  std::atomic<bool> has_news{false};

  void ring() {
    bell.ring();
    has_news.store(true, std::memory_order_release);
  }
  void silence() {
    if (has_news.exchange(false, std::memory_order_acq_rel)) bell.silence();
  }
};

/// A backend of a device's memory: what lives in memory of the host, control messages and liveness
/// are up to another backend, `rest`.
class DeviceBackend : public Backend {
 public:
  bool arm() override { return rest_->arm() && !bell_->has_news.load(std::memory_order_acquire); }
  int descriptor() const override { return poller_.descriptor(); }
  Capabilities capabilities() const override { return capabilities_; }
  bool shares(const std::byte* data, size_t bytes) const override {
    return rest_->shares(data, bytes);
  }
  bool packs_itself(const Collective& collective, const Launch& launch) const override {
    return launch.device == nullptr && rest_->packs_itself(collective, launch);
  }
  Traffic predict(const Collective& collective, const Launch& launch) override {
    return launch.device == nullptr ? rest_->predict(collective, launch) : Traffic{};
  }
  std::string_view algorithm(const Collective& collective) const override {
    return rest_->algorithm(collective);
  }
  std::vector<int> missing(int queue) const override { return rest_->missing(queue); }
  Transport* transport() override { return rest_->transport(); }
  TransportCounters counters() override { return rest_->counters(); }

 protected:
  DeviceBackend(std::unique_ptr<Backend> rest, std::shared_ptr<DeviceBell> bell);
  ~DeviceBackend() override;

  /// Throws Error(invalid_argument) for what it does not serve on this device, or counts that make
  /// no sense; `called` is its name in the text.
  void check(const Collective& collective, Device device, std::string_view called) const;

  const std::unique_ptr<Backend> rest_;
  const std::shared_ptr<DeviceBell> bell_;
  Capabilities capabilities_;  // constant after construction
  Poller poller_;
};

/// The device that this rank uses, dealt out among the ranks of a host in the job: of CUDA, or
/// where there is one of the tests' fake. Throws Error(unavailable) that says why there is none
/// that `user` could use.
Device choose_device(const Context& context, std::string_view user);

}  // namespace tutti
