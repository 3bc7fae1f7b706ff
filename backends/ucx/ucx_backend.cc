#include <memory>

#include "tutti/backends/backend.h"
#include "tutti/backends/ucx/library.h"
#include "tutti/backends/ucx/ucx_transport.h"

namespace tutti {

namespace {

std::unique_ptr<Backend> connect(const Context& context) {
  return make_transport_backend(context, "ucx", std::make_unique<UcxTransport>(context));
}

}  // namespace

const BackendPlugin tutti_backend_plugin = {
    .name = "ucx",
    .summary = "UCX: shared memory, TCP, RDMA, whatever it finds",
    .connect = connect,
    .version = ucx_version,
};

}  // namespace tutti
