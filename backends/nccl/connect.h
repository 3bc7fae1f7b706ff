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

/// Makes nonblocking communicators that are ready, on the current device of this thread. If one
/// rank fails, all that take part do, with the same text. Throws Error(unavailable | version |
/// timeout | invalid_argument).
class NcclConnector {
 public:
  NcclConnector(const Context& context, std::shared_ptr<const NcclLibrary> library,
                NcclSettings settings);

  /// Tells the other ranks what this one has, and hears of all. `failure`: why it has nothing.
  void announce(const std::string& failure);
  /// Of all ranks.
  std::shared_ptr<NcclCommunicator> connect();
  /// Of the ranks of each color, in the order of their keys. All ranks of `whole` call it, and
  /// nothing is under way on it. Null with a color < 0.
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

/// What NCCL's communicators are told: never to block, and what users set. Borrows the settings.
/// Throws Error(version) for a setting that this library does not know yet.
ncclConfig_t make_config(const NcclSettings& settings, const NcclLibrary& library);

}  // namespace tutti
