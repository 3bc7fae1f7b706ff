#include "tutti/backends/backend.h"

const tutti::BackendPlugin tutti::tutti_backend_plugin = {
    .abi = ABI,
    .name = NAME,
    .connect = [](const Context&) -> std::unique_ptr<Backend> { return nullptr; },
};
