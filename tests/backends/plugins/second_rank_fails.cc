// Connects on rank 0 and then fails on rank 1.

#include "tutti/backends/backend.h"
#include "tutti/base/error.h"

const tutti::BackendPlugin tutti::tutti_backend_plugin = {
    .name = "second_rank_fails",
    .connect = [](const Context& context) -> std::unique_ptr<Backend> {
      auto backend = find_backend("tcp").connect(context);
      if (context.rank == 0) {
        context.store->set("rank 0 is connected", "yes");
        return backend;
      }
      context.store->get("rank 0 is connected", context.deadline);
      throw Error(ErrorCode::unavailable, "rank 1 has no such device");
    },
};
