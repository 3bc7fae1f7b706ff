#pragma once

#include <memory>
#include <vector>

#include "tutti/core/engine/engine.h"
#include "tutti/core/engine/host_pool.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// Takes operations on device memory through host memory in stream order: the host never waits. The
/// user's stream copies out, piece by piece, and submits when the first piece is there; the engine
/// launches what has come. What is final this object's own stream copies back while later pieces
/// travel, and at the end it releases the Work and its word (what Work::wait_on makes a stream wait
/// for). Pieces are those in which an allreduce travels (Options::partition_bytes); other
/// operations are one piece. One per communicator and device. Any thread.
class Staging : public std::enable_shared_from_this<Staging> {
 public:
  static std::shared_ptr<Staging> make(std::shared_ptr<Engine> engine, Device device);
  /// Waits until its stream has done all that it was given. An error of the device is logged.
  ~Staging();

  /// Submits `entries` (whose works are not set) as one operation called `name`.
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
