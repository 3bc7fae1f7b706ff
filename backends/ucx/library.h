#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "tutti/backends/backend.h"

namespace tutti {

/// A UCP context, configured for us: errors of peers are reported, also by the transports in shared
/// memory. Any thread may map memory in it.
class UcxContext {
 public:
  /// Throws Error(unavailable) that says what UCX said, or which interfaces there are.
  explicit UcxContext(const Context& context);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h get() const { return context_; }

 private:
  ucp_context_h context_ = nullptr;
};

/// Its one worker. One thread at a time uses it.
class UcxWorker {
 public:
  /// Throws as UcxContext.
  explicit UcxWorker(const Context& context);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  /// What lives in it may live longer than the worker.
  const std::shared_ptr<UcxContext>& context() const { return context_; }
  /// Readable when progressing is worth it, once armed.
  int descriptor() const { return descriptor_; }
  /// What other workers need for an endpoint to this one.
  const std::string& address() const { return address_; }

 private:
  const std::shared_ptr<UcxContext> context_;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  std::string address_;
};

/// The transports over which an endpoint really sends, as UCX calls them: "posix, cma".
std::string transports_of(ucp_ep_h endpoint);

std::string ucx_version();

}  // namespace tutti
