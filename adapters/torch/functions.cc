#include "tutti/adapters/torch/functions.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>
#include <vector>

#include "tutti/adapters/torch/tensors.h"

namespace tutti::torch {

namespace {

using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

// A communicator in a context's saved values, which are LibTorch's own types.
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

// Backward hands in a gradient that is undefined where nothing came.
::at::Tensor gradient_in(const variable_list& gradients) { return gradients[0].contiguous(); }

std::vector<int64_t> rows_in(AutogradContext* context) {
  return context->saved_data["rows"].toIntVector();
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
    comm.allreduce(name, view_of(name, output, comm.rank()), static_cast<ReduceOp>(op)).wait();
    return output;
  }
};

struct Allgather : ::torch::autograd::Function<Allgather> {
  static ::at::Tensor forward(AutogradContext* context, int64_t comm, const std::string& name,
                              const ::at::Tensor& input) {
    save(context, comm, name);
    const auto rows = input.contiguous();
    auto work = communicator_in(context).allgather(
        name, view_of(name, rows, communicator_in(context).rank()));
    auto output = tensor_of(work.output());
    context->saved_data["rows"] = work.received_counts();
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& comm = communicator_in(context);
    const auto name = backward_name(context);
    const auto gradient = gradient_in(gradients);
    const auto rows = rows_in(context);
    auto work = comm.reduce_scatter(name, view_of(name, gradient, comm.rank()),
                                    {.op = ReduceOp::sum}, rows);
    return {{}, {}, tensor_of(work.output())};
  }
};

struct Broadcast : ::torch::autograd::Function<Broadcast> {
  static ::at::Tensor forward(AutogradContext* context, int64_t comm, const std::string& name,
                              const ::at::Tensor& input, int64_t root) {
    save(context, comm, name);
    context->saved_data["root"] = root;
    auto output = input.contiguous().clone();
    auto& communicator = communicator_in(context);
    communicator.broadcast(name, view_of(name, output, communicator.rank()), static_cast<int>(root))
        .wait();
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& comm = communicator_in(context);
    const auto name = backward_name(context);
    const auto root = static_cast<int>(context->saved_data["root"].toInt());
    auto gradient = gradient_in(gradients).clone();
    const auto view = view_of(name, gradient, comm.rank());
    comm.reduce(name, view, view, root).wait();
    if (comm.rank() != root) gradient.zero_();
    return {{}, {}, gradient, {}};
  }
};

struct ReduceScatter : ::torch::autograd::Function<ReduceScatter> {
  static ::at::Tensor forward(AutogradContext* context, int64_t comm, const std::string& name,
                              const ::at::Tensor& input) {
    save(context, comm, name);
    auto& communicator = communicator_in(context);
    const auto rows = input.contiguous();
    auto work = communicator.reduce_scatter(name, view_of(name, rows, communicator.rank()),
                                            {.op = ReduceOp::sum});
    return tensor_of(work.output());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& comm = communicator_in(context);
    const auto name = backward_name(context);
    const auto gradient = gradient_in(gradients);
    auto work = comm.allgather(name, view_of(name, gradient, comm.rank()));
    return {{}, {}, tensor_of(work.output())};
  }
};

struct Alltoall : ::torch::autograd::Function<Alltoall> {
  static ::at::Tensor forward(AutogradContext* context, int64_t comm, const std::string& name,
                              const ::at::Tensor& input, const std::vector<int64_t>& splits) {
    save(context, comm, name);
    auto& communicator = communicator_in(context);
    const auto rows = input.contiguous();
    auto work = communicator.alltoall(name, view_of(name, rows, communicator.rank()), splits);
    auto output = tensor_of(work.output());
    context->saved_data["rows"] = work.received_counts();
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& comm = communicator_in(context);
    const auto name = backward_name(context);
    const auto gradient = gradient_in(gradients);
    const auto rows = rows_in(context);
    auto work = comm.alltoall(name, view_of(name, gradient, comm.rank()), rows);
    return {{}, {}, tensor_of(work.output()), {}};
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
