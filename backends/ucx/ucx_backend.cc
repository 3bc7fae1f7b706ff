#include <memory>

#include "tutti/backends/backend.h"
#include "tutti/backends/ucx/library.h"
#include "tutti/backends/ucx/ucx_transport.h"

namespace tutti {

namespace {

std::unique_ptr<Transport> transport(const Context& context) {
  return std::make_unique<UcxTransport>(context);
}

std::unique_ptr<Backend> connect(const Context& context) {
  return make_transport_backend(context, "ucx", transport(context));
}

}  // namespace

const BackendPlugin tutti_backend_plugin = {
    .name = "ucx",
    .summary = "UCX: shared memory, TCP, RDMA, whatever it finds",
    .connect = connect,
    .transport = transport,
    .version = ucx_version,
};

}  // namespace tutti
