#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/nccl/library.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// Makes `count` communicators of all ranks on the current device of this thread, all nonblocking
/// and ready. If one rank fails, all do, with the same text. Throws Error(unavailable | version |
/// timeout | invalid_argument).
class NcclConnector {
 public:
  /// Tells the other ranks what this one has; `failure`: why it has nothing.
  NcclConnector(const Context& context, std::shared_ptr<const NcclLibrary> library,
                const std::string& failure);
  std::vector<ncclComm_t> connect(int count);

 private:
  void hear_all();
  [[noreturn]] void fail(const Error& error);
  ncclUniqueId exchange_id();
  void check(ncclResult_t result, ncclComm_t comm);
  void await(ncclComm_t comm);
  ncclConfig_t config() const;

  const Context& context_;
  const std::shared_ptr<const NcclLibrary> library_;
};

/// The device that this rank uses, dealt out among the ranks of a host: of CUDA, or where there is
/// one of the tests' fake. Throws Error(unavailable) that says why there is none.
Device choose_device(const Context& context);

}  // namespace tutti
