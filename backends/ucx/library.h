#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "tutti/backends/backend.h"

namespace tutti {

/// A UCP context that reports the errors of peers, also over shared memory. Any thread may map
/// memory in it.
class UcxContext {
 public:
  /// Throws Error(unavailable) with UCX's reason, or with the list of interfaces.
  explicit UcxContext(const Context& context);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h get() const { return context_; }

 private:
  ucp_context_h context_ = nullptr;
};

/// The only worker of a UcxContext. One thread at a time uses it.
class UcxWorker {
 public:
  /// Throws what UcxContext throws.
  explicit UcxWorker(const Context& context);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  /// Returns the context. Memory that is mapped in it may outlive the worker.
  const std::shared_ptr<UcxContext>& context() const { return context_; }
  /// Returns a descriptor. Once the worker is armed, it becomes readable when there is progress to
  /// make.
  int descriptor() const { return descriptor_; }
  /// Returns the address that other workers need to make an endpoint to this worker.
  const std::string& address() const { return address_; }

 private:
  const std::shared_ptr<UcxContext> context_;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  std::string address_;
};

/// Returns the transports over which an endpoint sends, in UCX's names: "posix, cma".
std::string transports_of(ucp_ep_h endpoint);

std::string ucx_version();

}  // namespace tutti
