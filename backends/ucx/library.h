#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "tutti/backends/backend.h"

namespace tutti {

/// A UCP context, configured so that errors of peers are reported, also by the shared-memory
/// transports. Any thread may map memory in it.
class UcxContext {
 public:
  /// Throws Error(unavailable) with UCX's reason or the list of interfaces.
  explicit UcxContext(const Context& context);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h get() const { return context_; }

 private:
  ucp_context_h context_ = nullptr;
};

/// The one worker of a UcxContext. One thread at a time uses it.
class UcxWorker {
 public:
  /// Throws like UcxContext.
  explicit UcxWorker(const Context& context);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  /// Returns the context. Memory in it may outlive the worker.
  const std::shared_ptr<UcxContext>& context() const { return context_; }
  /// Once armed, it becomes readable when progressing is worth it.
  int descriptor() const { return descriptor_; }
  /// Returns the address that other workers need for an endpoint to this one.
  const std::string& address() const { return address_; }

 private:
  const std::shared_ptr<UcxContext> context_;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  std::string address_;
};

/// Returns the transports over which an endpoint really sends, in UCX's names: "posix, cma".
std::string transports_of(ucp_ep_h endpoint);

std::string ucx_version();

}  // namespace tutti
