#pragma once

#include <memory>
#include <string>

#include "tutti/backends/backend.h"
#include "tutti/backends/nccl/communicator.h"
#include "tutti/backends/nccl/library.h"
#include "tutti/backends/nccl_settings.h"
#include "tutti/backends/store/told_failure.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// Makes nonblocking communicators and waits until they are ready, on the current device of this
/// thread. If one rank fails, all ranks that take part fail with the same text. Throws
/// Error(unavailable | version | timeout | invalid_argument).
class NcclConnector {
 public:
  NcclConnector(const Context& context, std::shared_ptr<const NcclLibrary> library,
                NcclSettings settings);

  /// Publishes this rank's version of NCCL and reads the versions of all ranks. `failure` says why
  /// this rank has no NCCL. It is empty if this rank has it.
  void announce(const std::string& failure);
  /// Returns a communicator of all ranks.
  std::shared_ptr<NcclCommunicator> connect();
  /// Returns a communicator of the ranks with this color, in the order of their keys, or null if
  /// color < 0. All ranks of `whole` call it. No operation may be running on `whole`.
  std::shared_ptr<NcclCommunicator> split(NcclCommunicator& whole, int color, int key);

 private:
  [[noreturn]] void fail(const Error& error);
  [[noreturn]] void fail(const std::string& said);
  ncclUniqueId exchange_id();
  void await(NcclCommunicator& communicator);

  const Context& context_;
  const ToldFailure told_;
  const NcclSettings settings_;
  const std::shared_ptr<const NcclLibrary> library_;
};

/// Returns the configuration of NCCL's communicators: nonblocking, with the user's settings. The
/// result points into `settings`. Throws Error(version) for a setting that this version of NCCL
/// does not know.
ncclConfig_t make_config(const NcclSettings& settings, const NcclLibrary& library);

}  // namespace tutti
