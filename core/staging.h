#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tutti/core/engine.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// Takes operations on device memory through host memory in stream order: the host never waits. The
/// user's stream copies out and, when it gets there, submits; when the operation is over, this
/// object's own stream copies back and releases the Work and its word (what Work::wait_on makes a
/// stream wait for). One per communicator and kind of device. Any thread.
class Staging {
 public:
  Staging(std::shared_ptr<Engine> engine, Device device);
  /// Waits until nothing of its stream is left to do.
  ~Staging();

  /// Submits `entries` (whose works are not set) as one operation called `name`.
  std::shared_ptr<WorkState> submit(std::string name, std::vector<std::unique_ptr<Entry>> entries);

 private:
  struct Job;
  void copy_back(const std::shared_ptr<Job>& job, std::exception_ptr error);

  const std::shared_ptr<Engine> engine_;
  DeviceRuntime& runtime_;
  const Device device_;
  const StreamRef stream_;
};

}  // namespace tutti
