#include "tutti/adapters/torch/functions.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tutti/adapters/torch/tensors.h"

namespace tutti::torch {

namespace {

using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

// Stores a communicator among a context's saved values, which must be of LibTorch's own types.
int64_t as_number(Communicator& comm) { return reinterpret_cast<int64_t>(&comm); }
Communicator& communicator_in(AutogradContext* context) {
  return *reinterpret_cast<Communicator*>(context->saved_data["communicator"].toInt());
}

void save(AutogradContext* context, int64_t comm, const std::string& name) {
  context->saved_data["communicator"] = comm;
  context->saved_data["name"] = name;
}
std::string backward_name(AutogradContext* context) {
  return context->saved_data["name"].toStringRef() + ".backward";
}

// Returns the gradient that backward received. It is undefined if no gradient arrived.
::at::Tensor gradient_in(const variable_list& gradients) { return gradients[0].contiguous(); }

std::vector<int64_t> rows_in(AutogradContext* context) {
  return context->saved_data["rows"].toIntVector();
}

// On a GPU this makes torch's current stream wait, not the host.
void finish(Work work, const ::at::Tensor& output) {
  work.wait_on(current_stream(output.device()));
}

// Rows that were received, and their number from each rank. On a GPU the rows are in torch's own
// memory, because torch knows the streams that use it. So the ranks first exchange the numbers of
// rows in host memory.
struct Rows {
  ::at::Tensor tensor;
  std::vector<int64_t> counts;
};

// Returns whether this rank allocates the output: for rows on a GPU. Tensors without rows or with
// wrong splits are passed on, because the collective itself refuses them.
bool needs_room(const ::at::Tensor& rows) { return !rows.is_cpu() && rows.dim() > 0; }

::at::Tensor room_for(const ::at::Tensor& like, int64_t rows) {
  auto sizes = like.sizes().vec();
  sizes.at(0) = rows;
  return ::at::empty(sizes, like.options().requires_grad(false));
}

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Rows gathered(Communicator& comm, const std::string& name, const ::at::Tensor& rows) {
  const auto view = view_of(name, rows, comm.rank());
  if (!needs_room(rows)) {
    auto work = comm.allgather(name, view);
    return {tensor_of(work.output()), work.received_counts()};
  }
  std::vector<int64_t> own = {rows.size(0)};
  const auto all = comm.allgather(name + ".rows", own).output();
  Rows result{{}, {all.as<int64_t>(), all.as<int64_t>() + comm.size()}};
  result.tensor = room_for(rows, sum(result.counts));
  finish(comm.allgather(name, view, view_of(name, result.tensor, comm.rank())), result.tensor);
  return result;
}

// `shares` are the numbers of rows that the ranks get. If it is empty, parts are equal and the
// lowest ranks get the remainder.
::at::Tensor scattered_sum(Communicator& comm, const std::string& name, const ::at::Tensor& rows,
                           const std::vector<int64_t>& shares = {}) {
  const auto view = view_of(name, rows, comm.rank());
  const ReduceOptions sum_of_all{.op = ReduceOp::sum};
  if (!needs_room(rows))
    return tensor_of(comm.reduce_scatter(name, view, sum_of_all, shares).output());
  const auto rank = static_cast<size_t>(comm.rank());
  const int64_t own = shares.empty() ? rows.size(0) / comm.size() +
                                           (comm.rank() < rows.size(0) % comm.size() ? 1 : 0)
                                     : shares.at(rank);
  auto output = room_for(rows, own);
  finish(comm.reduce_scatter(name, view, view_of(name, output, comm.rank()), sum_of_all, shares),
         output);
  return output;
}

Rows exchanged(Communicator& comm, const std::string& name, const ::at::Tensor& rows,
               const std::vector<int64_t>& splits) {
  const auto view = view_of(name, rows, comm.rank());
  const auto ranks = static_cast<size_t>(comm.size());
  if (!needs_room(rows) || (!splits.empty() && splits.size() != ranks)) {
    auto work = comm.alltoall(name, view, splits);
    return {tensor_of(work.output()), work.received_counts()};
  }
  auto sent = splits;
  if (sent.empty()) sent.assign(ranks, rows.size(0) / comm.size());
  const auto all = comm.alltoall(name + ".rows", sent).output();
  Rows result{{}, {all.as<int64_t>(), all.as<int64_t>() + comm.size()}};
  result.tensor = room_for(rows, sum(result.counts));
  finish(comm.alltoall(name, view, view_of(name, result.tensor, comm.rank()), splits),
         result.tensor);
  return result;
}

struct Allreduce : ::torch::autograd::Function<Allreduce> {
  static ::at::Tensor forward(AutogradContext* context, int64_t comm, const std::string& name,
                              const ::at::Tensor& input, int64_t op) {
    save(context, comm, name);
    context->saved_data["op"] = op;
    return reduced(communicator_in(context), name, input, op);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {{},
            {},
            reduced(communicator_in(context), backward_name(context), gradient_in(gradients),
                    context->saved_data["op"].toInt()),
            {}};
  }
  static ::at::Tensor reduced(Communicator& comm, const std::string& name,
                              const ::at::Tensor& input, int64_t op) {
    auto output = input.contiguous().clone();
    finish(comm.allreduce(name, view_of(name, output, comm.rank()), static_cast<ReduceOp>(op)),
           output);
    return output;
  }
};

struct Allgather : ::torch::autograd::Function<Allgather> {
  static ::at::Tensor forward(AutogradContext* context, int64_t comm, const std::string& name,
                              const ::at::Tensor& input) {
    save(context, comm, name);
    auto all = gathered(communicator_in(context), name, input.contiguous());
    context->saved_data["rows"] = std::move(all.counts);
    return all.tensor;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {{},
            {},
            scattered_sum(communicator_in(context), backward_name(context), gradient_in(gradients),
                          rows_in(context))};
  }
};

struct Broadcast : ::torch::autograd::Function<Broadcast> {
  static ::at::Tensor forward(AutogradContext* context, int64_t comm, const std::string& name,
                              const ::at::Tensor& input, int64_t root) {
    save(context, comm, name);
    context->saved_data["root"] = root;
    auto output = input.contiguous().clone();
    auto& communicator = communicator_in(context);
    finish(communicator.broadcast(name, view_of(name, output, communicator.rank()),
                                  static_cast<int>(root)),
           output);
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& comm = communicator_in(context);
    const auto name = backward_name(context);
    const auto root = static_cast<int>(context->saved_data["root"].toInt());
    auto gradient = gradient_in(gradients).clone();
    const auto view = view_of(name, gradient, comm.rank());
    finish(comm.reduce(name, view, view, root), gradient);
    if (comm.rank() != root) gradient.zero_();
    return {{}, {}, gradient, {}};
  }
};

struct ReduceScatter : ::torch::autograd::Function<ReduceScatter> {
  static ::at::Tensor forward(AutogradContext* context, int64_t comm, const std::string& name,
                              const ::at::Tensor& input) {
    save(context, comm, name);
    return scattered_sum(communicator_in(context), name, input.contiguous());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {
        {},
        {},
        gathered(communicator_in(context), backward_name(context), gradient_in(gradients)).tensor};
  }
};

struct Alltoall : ::torch::autograd::Function<Alltoall> {
  static ::at::Tensor forward(AutogradContext* context, int64_t comm, const std::string& name,
                              const ::at::Tensor& input, const std::vector<int64_t>& splits) {
    save(context, comm, name);
    auto all = exchanged(communicator_in(context), name, input.contiguous(), splits);
    context->saved_data["rows"] = std::move(all.counts);
    return all.tensor;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {{},
            {},
            exchanged(communicator_in(context), backward_name(context), gradient_in(gradients),
                      rows_in(context))
                .tensor,
            {}};
  }
};

}  // namespace

::at::Tensor allreduce(Communicator& comm, const std::string& name, const ::at::Tensor& input,
                       ReduceOp op) {
  if (op != ReduceOp::sum && op != ReduceOp::average)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("\"{}\" on rank {}: an allreduce with a gradient takes sum and average, "
                    "not {}; detach the tensor and call the communicator's",
                    name, comm.rank(), to_string(op)))
        .with_tensor(name);
  return Allreduce::apply(as_number(comm), name, input, static_cast<int64_t>(op));
}

::at::Tensor allgather(Communicator& comm, const std::string& name, const ::at::Tensor& input) {
  return Allgather::apply(as_number(comm), name, input);
}

::at::Tensor broadcast(Communicator& comm, const std::string& name, const ::at::Tensor& input,
                       int root) {
  return Broadcast::apply(as_number(comm), name, input, static_cast<int64_t>(root));
}

::at::Tensor reduce_scatter(Communicator& comm, const std::string& name,
                            const ::at::Tensor& input) {
  return ReduceScatter::apply(as_number(comm), name, input);
}

::at::Tensor alltoall(Communicator& comm, const std::string& name, const ::at::Tensor& input,
                      std::span<const int64_t> splits) {
  return Alltoall::apply(as_number(comm), name, input,
                         std::vector<int64_t>(splits.begin(), splits.end()));
}

}  // namespace tutti::torch
