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

/// Wakes the engine when something has happened on the device. Host functions of streams share it,
/// because they may run after the backend is gone.
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

/// The base of a backend for a device's memory. Another backend, `rest`, serves operations on host
/// memory, control messages and liveness.
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

  /// Throws Error(invalid_argument) if the backend does not serve this collective on this device,
  /// or if its counts are invalid. `called` names the backend in the error text.
  void check(const Collective& collective, Device device, std::string_view called) const;

  const std::unique_ptr<Backend> rest_;
  const std::shared_ptr<DeviceBell> bell_;
  Capabilities capabilities_;  // constant after construction
  Poller poller_;
};

/// Returns the device that this rank uses. The devices of a host are given in turn to the job's
/// ranks on that host. It is a CUDA device, or a fake device if the tests' runtime is present.
/// Throws Error(unavailable) if there is no device. The error gives the reason and names `user`,
/// the backend that needs the device.
Device choose_device(const Context& context, std::string_view user);

}  // namespace tutti
