#include "tutti/adapters/torch/gradients.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

namespace tutti::torch {

namespace {

bool is_zero(const ::at::Tensor& tensor) {
  if (!tensor.is_cpu()) return !tensor.any().item<bool>();
  const auto* bytes = static_cast<const std::byte*>(tensor.data_ptr());
  return std::all_of(bytes, bytes + tensor.nbytes(), [](std::byte b) { return b == std::byte(); });
}

}  // namespace

/// Runs when AccumulateGrad has written the parameter's gradient.
class Gradients::Hook : public ::torch::autograd::FunctionPostHook {
 public:
  Hook(Gradients& gradients, size_t index) : gradients_(gradients), index_(index) {}
  ::torch::autograd::variable_list operator()(
      const ::torch::autograd::variable_list& outputs,
      const ::torch::autograd::variable_list& inputs) override {
    if (!inputs.empty() && inputs[0].defined()) gradients_.accumulated(index_);
    return outputs;
  }

 private:
  Gradients& gradients_;
  const size_t index_;
};

Gradients::Gradients(Communicator& comm, ::torch::optim::Optimizer& optimizer,
                     const std::vector<ModuleTensor>& parameters, const DistributedOptions& options)
    : comm_(comm),
      optimizer_(optimizer),
      may_be_left_out_(options.op == ReduceOp::average || options.op == ReduceOp::sum),
      through_arena_(options.noise.batch == 0),
      exchanges_values_(options.exchange.exchanges_parameters()) {
  if (dynamic_cast<::torch::optim::LBFGS*>(&optimizer) != nullptr)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("LBFGS on rank {} evaluates the model several times in a step, which "
                            "distributed() cannot average; take SGD, Adam or another that "
                            "evaluates it once",
                            comm.rank()))
        .with_rank(comm.rank());
  take_parameters(parameters, options);
  if (std::all_of(slots_.begin(), slots_.end(),
                  [](const Slot& slot) { return slot.parameter.is_cpu(); }))
    make_arena(options);
  else
    through_arena_ = false;
  make_gradients();
  for (size_t i = 0; i < slots_.size(); ++i) {
    auto& slot = slots_[i];
    index_[slot.name] = i;
    slot.accumulator = ::torch::autograd::impl::grad_accumulator(slot.parameter);
    slot.hook = slot.accumulator->add_post_hook(std::make_unique<Hook>(*this, i));
  }
}

// Takes the parameters that the optimizer has.
void Gradients::take_parameters(const std::vector<ModuleTensor>& parameters,
                                const DistributedOptions& options) {
  std::set<::at::TensorImpl*> wanted;
  for (const auto& group : optimizer_.param_groups())
    for (const auto& parameter : group.params()) wanted.insert(parameter.unsafeGetTensorImpl());
  // Backward reaches the last layers first.
  for (auto at = parameters.rbegin(); at != parameters.rend(); ++at) {
    if (wanted.erase(at->tensor.unsafeGetTensorImpl()) == 0) continue;
    if (!at->tensor.requires_grad()) {
      frozen_.push_back(*at);
      continue;
    }
    auto& slot = slots_.emplace_back();
    slot.name = at->name;
    slot.parameter = at->tensor;
    if (!at->sparse) continue;
    if (options.noise.batch > 0 || !may_be_left_out_ ||
        options.exchange.combination == Combination::adasum)
      throw refused_tensor(at->name, comm_.rank(),
                           "has sparse gradients, which are averaged or summed and nothing else; "
                           "leave op, noise and exchange.combination as they are, or make the "
                           "embedding without sparse");
    slot.rows.emplace(comm_, at->name, at->tensor);
  }
  if (!wanted.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the optimizer on rank {} has {} parameters that the module has not; "
                            "give distributed() the module that owns them all",
                            comm_.rank(), wanted.size()))
        .with_rank(comm_.rank());
}

void Gradients::make_arena(const DistributedOptions& options) {
  std::vector<GradientArena::Array> arrays;
  for (const auto& slot : slots_) {
    if (slot.rows) continue;
    const auto view = view_of(slot.name, slot.parameter, comm_.rank());
    arrays.push_back({.name = slot.name,
                      .shape = view.shape(),
                      .dtype = view.dtype(),
                      .strides = view.is_row_major() ? std::vector<int64_t>() : view.strides(),
                      .may_be_left_out = may_be_left_out_});
  }
  arena_ = std::make_unique<GradientArena>(comm_, std::move(arrays), options.reduce());
}

void Gradients::make_gradients() {
  for (auto& slot : slots_) {
    const auto value = view_of(slot.name, slot.parameter, comm_.rank());
    if (slot.rows) {
      parameters_.push_back({slot.name, value, TensorView()});
      continue;
    }
    if (arena_)
      slot.gradient =
          ::at::from_blob((*arena_)[slot.name].data(), slot.parameter.sizes(),
                          slot.parameter.strides(), slot.parameter.options().requires_grad(false));
    else
      slot.gradient = ::at::zeros_like(slot.parameter.detach());
    parameters_.push_back({slot.name, value, view_of(slot.name, slot.gradient, comm_.rank())});
  }
}

Gradients::~Gradients() {
  for (auto& slot : slots_) {
    slot.accumulator->del_post_hook(slot.hook);
    try {
      if (slot.work) slot.work.wait();
      if (slot.earlier) slot.earlier.wait();
      if (slot.rows) slot.rows->wait();
    } catch (const Error&) {
      // The step that would have used this result is never taken.
    }
    if (slot.rows || !arena_) continue;
    // Other holders of the gradient keep it, in memory of its own.
    const ::c10::Storage storage = slot.gradient.storage();
    auto memory = ::c10::GetCPUAllocator()->allocate(storage.nbytes());
    if (storage.nbytes() > 0) {
      if (slot.sent)
        std::memset(memory.get(), 0, storage.nbytes());
      else
        std::memcpy(memory.get(), slot.gradient.data_ptr(), storage.nbytes());
    }
    storage.set_data_ptr_noswap(std::move(memory));
  }
}

bool Gradients::is_in_place(const Slot& slot) const {
  const auto& gradient = slot.parameter.grad();
  if (slot.rows) return gradient.is_same(slot.gradient);
  return gradient.defined() && gradient.layout() == ::at::kStrided &&
         gradient.data_ptr() == slot.gradient.data_ptr() &&
         gradient.sizes() == slot.gradient.sizes() && gradient.strides() == slot.gradient.strides();
}

// If the gradient is in another tensor, copies it into the arena, and gives the parameter the
// arena's tensor.
void Gradients::adopt(Slot& slot) {
  if (slot.rows || is_in_place(slot)) return;
  const ::c10::NoGradGuard no_history;
  const auto gradient = slot.parameter.grad().detach();
  if (gradient.sizes() != slot.gradient.sizes())
    throw refused_tensor(
        slot.name, comm_.rank(),
        fmt::format("was given a gradient of shape [{}], expected [{}]; assign one "
                    "of the parameter's shape",
                    fmt::join(gradient.sizes(), ","), fmt::join(slot.gradient.sizes(), ",")));
  slot.gradient.copy_(gradient.layout() == ::at::kStrided ? gradient : gradient.to_dense());
  slot.parameter.mutable_grad() = slot.gradient;
}

// Waits on the host for the previous step's reduction. Until now only a stream has waited for it.
void Gradients::arrive(Slot& slot) {
  if (slot.earlier) std::exchange(slot.earlier, Work()).wait();
}

void Gradients::accumulated(size_t index) {
  auto& slot = slots_[index];
  if (!slot.parameter.grad().defined()) return;
  if (!slot.sent) {
    arrive(slot);
    adopt(slot);
  }
  slot.reached = slot.present = true;
  if (ready_) ready_(slot.name);
}

void Gradients::reduce_gradient(std::string_view name, const ReduceOptions& options) {
  auto& slot = slots_[index_.find(name)->second];
  if (slot.rows) {
    slot.gradient = slot.parameter.grad();
    slot.rows->send(slot.gradient, options.op);
  } else if (!through_arena_) {
    slot.work = comm_.allreduce("gradient " + slot.name,
                                view_of(slot.name, slot.gradient, comm_.rank()), options);
  } else if (slot.present || !may_be_left_out_)
    arena_->ready(name);
  else
    arena_->leave_out(name);
  slot.sent = true;
}

void Gradients::wait_for_gradients() {
  for (auto& slot : slots_) {
    if (!slot.work) continue;
    slot.work.wait_on(current_stream(slot.gradient.device()));
    slot.earlier = std::exchange(slot.work, Work());
  }
  if (through_arena_) arena_->wait();
  for (auto& slot : slots_) {
    if (slot.rows) {
      slot.parameter.mutable_grad() = slot.rows->wait();
      slot.gradient = ::at::Tensor();
    } else if (through_arena_) {
      slot.used = arena_->used(slot.name);
    }
  }
}

void Gradients::check_unchanged() const {
  size_t count = 0;
  for (const auto& group : optimizer_.param_groups()) count += group.params().size();
  if (count != slots_.size() + frozen_.size())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the optimizer on rank {} has {} parameters and had {} when "
                            "distributed() was called; call it after the last add_param_group()",
                            comm_.rank(), count, slots_.size() + frozen_.size()))
        .with_rank(comm_.rank());
  for (const auto& [name, tensor, sparse] : frozen_)
    if (tensor.requires_grad())
      throw refused_tensor(name, comm_.rank(),
                           "requires a gradient now and did not when distributed() was called, so "
                           "ranks would not exchange it; thaw it before, or make it again");
  if (!exchanges_values_) return;
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].parameter.data_ptr() != parameters_[i].value.data())
      throw refused_tensor(slots_[i].name, comm_.rank(),
                           "has other memory than when distributed() was called, and this policy "
                           "exchanges values; load, move and cast the model before it");
}

void Gradients::settle() {
  check_unchanged();
  for (auto& slot : slots_) {
    if (slot.sent && !is_in_place(slot))
      throw refused_tensor(
          slot.name, comm_.rank(),
          fmt::format("has another gradient than the one on its way: expected the tensor that "
                      "backward wrote, got {}; change gradients between synchronize() and step()",
                      slot.parameter.grad().defined() ? "another tensor" : "none"));
    slot.used = true;
    if (slot.sent || slot.rows) continue;
    arrive(slot);
    slot.present = slot.parameter.grad().defined();
    if (slot.present)
      adopt(slot);
    else
      slot.gradient.zero_();
    // A zero gradient that backward did not reach was made by zero_grad(), so it does not count as
    // present.
    slot.present = slot.present && (slot.reached || !is_zero(slot.gradient));
    slot.parameter.mutable_grad() = slot.gradient;
  }
}

void Gradients::begin_step() {
  for (auto& slot : slots_) {
    slot.reached = slot.sent = slot.present = false;
    if (!slot.used) slot.parameter.mutable_grad() = ::at::Tensor();
  }
}

void Gradients::step() { optimizer_.step(); }

void Gradients::zero_grad() {
  for (auto& slot : slots_) slot.parameter.mutable_grad() = ::at::Tensor();
}

// Clips by torch's functions, for gradients that the host does not read.
double Gradients::clip_by_torch(double most) {
  const ::c10::NoGradGuard no_history;
  std::vector<::at::Tensor> gradients, norms;
  for (const auto& slot : slots_) {
    const auto& gradient = slot.parameter.grad();
    if (!gradient.defined()) continue;
    gradients.push_back(gradient.layout() == ::at::kStrided ? gradient : gradient.values());
    norms.push_back(
        ::at::linalg_vector_norm(gradients.back(), 2, ::c10::nullopt, false, ::at::kDouble)
            .to(gradients[0].device()));
  }
  if (gradients.empty()) return 0;
  const auto norm = ::at::stack(norms).norm().item<double>();
  if (norm > most)
    for (auto& gradient : gradients) gradient.mul_(most / norm);
  return norm;
}

double Gradients::clip_by_global_norm(double most) {
  if (!arena_) return clip_by_torch(most);
  std::vector<::at::Tensor> sparse;
  double squares = 0;
  for (const auto& slot : slots_)
    if (slot.rows && slot.parameter.grad().defined()) {
      sparse.push_back(slot.parameter.grad());
      squares += sparse.back().values().to(::at::kDouble).pow(2).sum().item<double>();
    }
  if (sparse.empty()) return tutti::clip_by_global_norm(parameters_, most);
  const double dense =
      tutti::clip_by_global_norm(parameters_, std::numeric_limits<double>::infinity());
  const double norm = std::sqrt(dense * dense + squares);
  if (norm <= most) return norm;
  tutti::clip_by_global_norm(parameters_, dense * (most / norm));
  for (auto& gradient : sparse) gradient.values().mul_(most / norm);
  return norm;
}

double Gradients::learning_rate() const {
  const auto& groups = optimizer_.param_groups();
  return groups.empty() ? 0 : groups[0].options().get_lr();
}

}  // namespace tutti::torch
