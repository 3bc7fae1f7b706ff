// The blocking calls of the C interface.

#include "tutti/adapters/c/status.h"
#include "tutti/adapters/c/tutti.h"
#include "tutti/adapters/c/values.h"

namespace tutti::c {

namespace {

// Runs a blocking call, after checking that the name is given.
template <class Body>
int block(tutti_comm_t comm, const char* name, Body&& body) {
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    need(name, "name");
    body(communicator);
  });
}

}  // namespace

}  // namespace tutti::c

using namespace tutti;     // NOLINT: the functions below are the C side of that namespace
using namespace tutti::c;  // NOLINT

int tutti_allreduce_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                             int op) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.allreduce_blocking(name, view_of(tensor, "tensor"), op_from(op));
  });
}

int tutti_allreduce_value(tutti_comm_t comm, const char* name, double* value, int op) {
  return block(comm, name, [&](Communicator& communicator) {
    need(value, "value");
    communicator.allreduce_blocking(name, TensorView(value, Shape{1}, DataType::f64), op_from(op));
  });
}

int tutti_broadcast_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                             int root) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.broadcast_blocking(name, view_of(tensor, "tensor"), root);
  });
}

int tutti_reduce_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                          const tutti_tensor_t* output, int root, int op) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.reduce_blocking(name, view_of(input, "input"), view_or_none(output, "output"),
                                 root, op_from(op));
  });
}

int tutti_allgather_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                             const tutti_tensor_t* output, const int64_t* rows) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.allgather_blocking(name, view_of(input, "input"), view_of(output, "output"),
                                    one_per_rank(communicator, rows));
  });
}

int tutti_gather_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                          const tutti_tensor_t* output, int root, const int64_t* rows) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.gather_blocking(name, view_of(input, "input"), view_or_none(output, "output"),
                                 root, one_per_rank(communicator, rows));
  });
}

int tutti_scatter_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                           const tutti_tensor_t* output, int root, const int64_t* rows) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.scatter_blocking(name, view_or_none(input, "input"), view_of(output, "output"),
                                  root, one_per_rank(communicator, rows));
  });
}

int tutti_reduce_scatter_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                                  const tutti_tensor_t* output, int op, const int64_t* rows) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.reduce_scatter_blocking(name, view_of(input, "input"), view_of(output, "output"),
                                         op_from(op), one_per_rank(communicator, rows));
  });
}

int tutti_alltoall_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* input,
                            const tutti_tensor_t* output) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.alltoall_blocking(name, view_of(input, "input"), view_of(output, "output"));
  });
}

int tutti_barrier_blocking(tutti_comm_t comm) {
  return guarded([&] { communicator_of(comm).barrier_blocking(); });
}

int tutti_send_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor, int to) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.send_blocking(name, view_of(tensor, "tensor"), to);
  });
}

int tutti_recv_blocking(tutti_comm_t comm, const char* name, const tutti_tensor_t* tensor,
                        int from) {
  return block(comm, name, [&](Communicator& communicator) {
    communicator.recv_blocking(name, view_of(tensor, "tensor"), from);
  });
}

int tutti_sendrecv_blocking(tutti_comm_t comm, const char* send_name, const tutti_tensor_t* input,
                            int to, const char* recv_name, const tutti_tensor_t* output, int from) {
  return block(comm, send_name, [&](Communicator& communicator) {
    need(recv_name, "recv_name");
    communicator.sendrecv_blocking(send_name, view_of(input, "input"), to, recv_name,
                                   view_of(output, "output"), from);
  });
}
