// Further forms of the C interface's calls: by handle, in groups, and out of place.

#include "tutti/adapters/c/start.h"

namespace tutti::c {

namespace {

// Starts an operation by a handle of tutti_declare().
template <class Body>
int start_declared(tutti_comm_t comm, tutti_name_t handle, tutti_work_t* work, Body&& body) {
  return start(comm, "declared", work, [&](Communicator& communicator) {
    need(handle, "handle");
    return body(communicator);
  });
}

std::vector<NamedTransfer> transfers_from(const char* const* names, const tutti_tensor_t* inputs,
                                          const tutti_tensor_t* outputs, size_t count) {
  if (count > 0) {
    need(names, "names");
    need(inputs, "inputs");
    need(outputs, "outputs");
  }
  std::vector<NamedTransfer> members;
  for (size_t i = 0; i < count; ++i) {
    need(names[i], "a name");
    members.push_back(
        {names[i], view_of(&inputs[i], "an input"), view_of(&outputs[i], "an output")});
  }
  return members;
}

}  // namespace

}  // namespace tutti::c

using namespace tutti;     // NOLINT: the functions below are the C side of that namespace
using namespace tutti::c;  // NOLINT

int tutti_allgather_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                             const tutti_tensor_t* output, tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.allgather(handle->handle, view_of(input, "input"),
                                  view_of(output, "output"));
  });
}

int tutti_broadcast_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* tensor,
                             int root, tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.broadcast(handle->handle, view_of(tensor, "tensor"), root);
  });
}

int tutti_reduce_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                          const tutti_tensor_t* output, int root, int op, tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.reduce(handle->handle, view_of(input, "input"),
                               view_or_none(output, "output"), root, op_from(op));
  });
}

int tutti_gather_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                          const tutti_tensor_t* output, int root, tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.gather(handle->handle, view_of(input, "input"),
                               view_or_none(output, "output"), root);
  });
}

int tutti_scatter_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                           const tutti_tensor_t* output, int root, const int64_t* rows,
                           tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.scatter(handle->handle, view_or_none(input, "input"),
                                view_of(output, "output"), root, one_per_rank(communicator, rows));
  });
}

int tutti_reduce_scatter_declared(tutti_comm_t comm, tutti_name_t handle,
                                  const tutti_tensor_t* input, const tutti_tensor_t* output,
                                  const tutti_reduce_options_t* options, const int64_t* rows,
                                  tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.reduce_scatter(handle->handle, view_of(input, "input"),
                                       view_of(output, "output"), options_from(options),
                                       one_per_rank(communicator, rows));
  });
}

int tutti_alltoall_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* input,
                            const tutti_tensor_t* output, const int64_t* splits,
                            tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.alltoall(handle->handle, view_of(input, "input"), view_of(output, "output"),
                                 one_per_rank(communicator, splits));
  });
}

int tutti_send_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* tensor,
                        int to, tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.send(handle->handle, view_of(tensor, "tensor"), to);
  });
}

int tutti_recv_declared(tutti_comm_t comm, tutti_name_t handle, const tutti_tensor_t* tensor,
                        int from, tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.recv(handle->handle, view_of(tensor, "tensor"), from);
  });
}

int tutti_barrier_declared(tutti_comm_t comm, tutti_name_t handle, tutti_work_t* work) {
  return start_declared(comm, handle, work, [&](Communicator& communicator) {
    return communicator.barrier(handle->handle);
  });
}

int tutti_broadcast_with(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                         const tutti_tensor_t* output, int root, tutti_work_t* work) {
  return start(comm, name, work, [&](Communicator& communicator) {
    return communicator.broadcast(name, view_or_none(input, "input"), view_of(output, "output"),
                                  root);
  });
}

int tutti_grouped_allreduce_with(tutti_comm_t comm, const char* group, const char* const* names,
                                 const tutti_tensor_t* inputs, const tutti_tensor_t* outputs,
                                 size_t count, const tutti_reduce_options_t* options,
                                 tutti_work_t* work) {
  return start(comm, group, work, [&](Communicator& communicator) {
    return communicator.grouped_allreduce(group, transfers_from(names, inputs, outputs, count),
                                          options_from(options));
  });
}

int tutti_grouped_allgather_into(tutti_comm_t comm, const char* group, const char* const* names,
                                 const tutti_tensor_t* inputs, const tutti_tensor_t* outputs,
                                 size_t count, tutti_work_t* work) {
  return start(comm, group, work, [&](Communicator& communicator) {
    return communicator.grouped_allgather(group, transfers_from(names, inputs, outputs, count));
  });
}

int tutti_grouped_reduce_scatter_into(tutti_comm_t comm, const char* group,
                                      const char* const* names, const tutti_tensor_t* inputs,
                                      const tutti_tensor_t* outputs, size_t count,
                                      const tutti_reduce_options_t* options, tutti_work_t* work) {
  return start(comm, group, work, [&](Communicator& communicator) {
    return communicator.grouped_reduce_scatter(group, transfers_from(names, inputs, outputs, count),
                                               options_from(options));
  });
}

int tutti_recv_any(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                   tutti_work_t* work) {
  return start(comm, name, work, [&](Communicator& communicator) {
    return communicator.recv_any(name, view_of(tensor, "tensor"));
  });
}

int tutti_allreduce_blocking_with(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                                  const tutti_tensor_t* output, int op) {
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    need(name, "name");
    communicator.allreduce_blocking(name, view_of(input, "input"), view_of(output, "output"),
                                    op_from(op));
  });
}
