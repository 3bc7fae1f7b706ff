#pragma once

#include <memory>
#include <vector>

#include "tutti/core/engine/engine.h"
#include "tutti/core/engine/host_pool.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// Runs operations on device memory through host memory in stream order, so that the host never
/// waits. The user's stream copies the input to host memory, piece by piece. When the first piece
/// has arrived, the operation is submitted, and the engine launches the pieces that have arrived.
/// The stream of this object copies finished pieces back while later pieces are being reduced. At
/// the end it completes the Work and opens the Work's gate. A gate is memory on which
/// Work::wait_on() makes a stream wait. An allreduce has pieces of Options::partition_bytes; every
/// other operation has one piece. A communicator has one Staging per device. Any thread may use it.
class Staging : public std::enable_shared_from_this<Staging> {
 public:
  static std::shared_ptr<Staging> make(std::shared_ptr<Engine> engine, Device device);
  /// Waits until this object's stream is idle. Logs an error of the device.
  ~Staging();

  /// Submits `entries` as one operation called `name`. Their Works must not be set yet.
  std::shared_ptr<WorkState> submit(std::string name, std::vector<std::unique_ptr<Entry>> entries);

 private:
  Staging(std::shared_ptr<Engine> engine, Device device);
  struct Job;
  class StagedTensor;
  void prepare(Entry& entry, const std::shared_ptr<Job>& job);
  void copy_out(StagedTensor& tensor, const std::shared_ptr<Job>& job);
  void copy_back(const std::shared_ptr<Job>& job, std::exception_ptr error);

  const std::shared_ptr<Engine> engine_;
  DeviceRuntime& runtime_;
  const Device device_;
  const StreamRef stream_;
  const std::shared_ptr<HostPool> pool_;
};

}  // namespace tutti
