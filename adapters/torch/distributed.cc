#include "tutti/adapters/torch/distributed.h"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <typeinfo>
#include <utility>

#include "tutti/adapters/torch/gradients.h"

namespace tutti::torch {

namespace {

// Returns the weights of embeddings whose gradients are sparse.
std::set<::at::TensorImpl*> sparse_weights_of(const ::torch::nn::Module& module) {
  std::set<::at::TensorImpl*> all;
  const auto look_at = [&](const ::torch::nn::Module& one) {
    if (const auto* rows = dynamic_cast<const ::torch::nn::EmbeddingImpl*>(&one))
      if (rows->options.sparse()) all.insert(rows->weight.unsafeGetTensorImpl());
    if (const auto* bag = dynamic_cast<const ::torch::nn::EmbeddingBagImpl*>(&one))
      if (bag->options.sparse()) all.insert(bag->weight.unsafeGetTensorImpl());
  };
  look_at(module);
  for (const auto& one : module.modules(/*include_self=*/false)) look_at(*one);
  return all;
}

// Returns the module's parameters. Tied parameters have one name, the first.
std::vector<ModuleTensor> parameters_of(const ::torch::nn::Module& module) {
  std::vector<ModuleTensor> all;
  const auto sparse = sparse_weights_of(module);
  std::set<::at::TensorImpl*> known;
  for (const auto& item : module.named_parameters())
    if (item.value().defined() && known.insert(item.value().unsafeGetTensorImpl()).second)
      all.push_back(
          {item.key(), item.value(), sparse.count(item.value().unsafeGetTensorImpl()) == 1});
  return all;
}

std::vector<ModuleTensor> buffers_of(const ::torch::nn::Module& module) {
  std::vector<ModuleTensor> all;
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) all.push_back({item.key(), item.value(), false});
  return all;
}

std::vector<NamedTensor> views_of(const std::vector<ModuleTensor>& tensors, int rank) {
  std::vector<NamedTensor> views;
  for (const auto& [name, tensor, sparse] : tensors)
    views.push_back({name, view_of(name, tensor, rank)});
  return views;
}

void broadcast_tensors(Communicator& comm, const std::string& kind,
                       const std::vector<ModuleTensor>& tensors, int root) {
  std::vector<Work> works;
  for (const auto& [name, view] : views_of(tensors, comm.rank()))
    works.push_back(comm.broadcast(kind + " " + name, view, root));
  for (auto& work : works) work.wait();
}

// Returns the options of a parameter group as text, without the learning rate. The text is empty
// for an optimizer that is not torch's.
std::string described(const ::torch::optim::OptimizerOptions& options) {
  using namespace ::torch::optim;
  const auto betas = [](const auto& adam) {
    return fmt::format("betas {} and {}, eps {}, weight decay {}, amsgrad {}",
                       std::get<0>(adam.betas()), std::get<1>(adam.betas()), adam.eps(),
                       adam.weight_decay(), adam.amsgrad());
  };
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options))
    return fmt::format("momentum {}, dampening {}, weight decay {}, nesterov {}", sgd->momentum(),
                       sgd->dampening(), sgd->weight_decay(), sgd->nesterov());
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return betas(*adam);
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return betas(*adamw);
  if (const auto* adagrad = dynamic_cast<const AdagradOptions*>(&options))
    return fmt::format("lr decay {}, weight decay {}, first accumulator {}, eps {}",
                       adagrad->lr_decay(), adagrad->weight_decay(),
                       adagrad->initial_accumulator_value(), adagrad->eps());
  if (const auto* rms = dynamic_cast<const RMSpropOptions*>(&options))
    return fmt::format("alpha {}, eps {}, weight decay {}, momentum {}, centered {}", rms->alpha(),
                       rms->eps(), rms->weight_decay(), rms->momentum(), rms->centered());
  return {};
}

// Returns the settings of an optimizer, beside its parameters, that must be equal on all ranks.
std::vector<std::string> settings_of(const ::torch::optim::Optimizer& optimizer,
                                     const std::vector<ModuleTensor>& parameters) {
  std::vector<std::string> settings = {
      fmt::format("type={}", ::c10::demangle(typeid(optimizer).name()))};
  const auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    settings.push_back(fmt::format("group {}={} parameters with learning rate {}", i,
                                   groups[i].params().size(), groups[i].options().get_lr()));
    settings.push_back(fmt::format("options of group {}={}", i, described(groups[i].options())));
  }
  for (const auto& parameter : parameters)
    if (parameter.sparse) settings.push_back("sparse gradients of=" + parameter.name);
  return settings;
}

// Returns the device of all parameters, or nothing if they are on several.
::c10::optional<::c10::Device> device_of(const ::torch::optim::Optimizer& optimizer) {
  ::c10::optional<::c10::Device> common;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      if (common && *common != parameter.device()) return ::c10::nullopt;
      common = parameter.device();
    }
  return common;
}

// Returns the archive of an optimizer that has a state. The archive is empty if the optimizer has
// no save().
std::string saved(const ::torch::optim::Optimizer& optimizer) {
  ::torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  std::istringstream back(stream.str());
  ::torch::serialize::InputArchive written;
  written.load_from(back);
  return written.keys().empty() ? std::string() : stream.str();
}

// Loads a state and returns whether the optimizer then has one.
bool load(::torch::optim::Optimizer& optimizer, std::span<const std::byte> bytes) {
  auto own = std::move(optimizer.state());
  optimizer.state().clear();
  std::istringstream stream(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  ::torch::serialize::InputArchive archive;
  // Each rank's parameters are on a device of its own.
  archive.load_from(stream, device_of(optimizer));
  optimizer.load(archive);
  if (!optimizer.state().empty()) return true;
  optimizer.state() = std::move(own);
  return false;
}

// Gives all ranks rank 0's state, or throws on all ranks. The archive lists the parameters in the
// order of the groups, whatever torch's keys are.
void broadcast_state(Communicator& comm, ::torch::optim::Optimizer& optimizer) {
  const bool is_root = comm.rank() == 0;
  const bool has_state =
      comm.broadcast_blocking("whether the optimizer has a state", !optimizer.state().empty(), 0);
  if (!has_state) return optimizer.state().clear();
  const auto bytes = comm.broadcast_made_bytes("state of the optimizer", [&] {
    const auto text = saved(optimizer);
    const auto made = std::as_bytes(std::span(text));
    return std::vector(made.begin(), made.end());
  });
  const bool is_there = !bytes.empty() && (is_root || load(optimizer, bytes));
  for (const int other : comm.allgather_blocking("whether the state was read", int(is_there)))
    if (!other)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the optimizer {} on rank {} has a state and no save() and load() "
                              "that bring it to other ranks; give it both, or clear "
                              "broadcast_first and make the states equal yourself",
                              ::c10::demangle(typeid(optimizer).name()), comm.rank()))
          .with_rank(comm.rank());
}

// Returns the module's parameters. Throws on every rank if any rank's model differs.
std::vector<ModuleTensor> checked_parameters(Communicator& comm,
                                             const ::torch::optim::Optimizer& optimizer,
                                             const ::torch::nn::Module& module,
                                             const std::vector<ModuleTensor>& buffers) {
  auto parameters = parameters_of(module);
  check_tensors_alike(comm, views_of(parameters, comm.rank()));
  check_tensors_alike(comm, views_of(buffers, comm.rank()), "buffer");
  check_settings_alike(comm, settings_of(optimizer, parameters), "the optimizer");
  return parameters;
}

}  // namespace

/// Holds the model's tensors and nothing else of the module.
class Distributed::State {
 public:
  State(Communicator& comm, ::torch::optim::Optimizer& optimizer, const ::torch::nn::Module& module,
        const DistributedOptions& options)
      : comm(comm),
        buffers(buffers_of(module)),
        parameters(checked_parameters(comm, optimizer, module, buffers)),
        gradients(comm, optimizer, parameters, options),
        inner(comm, gradients, options) {
    if (!options.broadcast_first) return;
    std::set<std::string_view> there_already;
    for (const auto& parameter : gradients.parameters()) there_already.insert(parameter.name);
    std::vector<ModuleTensor> others;
    for (const auto& parameter : parameters)
      if (there_already.count(parameter.name) == 0) others.push_back(parameter);
    broadcast_tensors(comm, "parameter", others, 0);
    broadcast_tensors(comm, "buffer", buffers, 0);
    broadcast_state(comm, optimizer);
  }

  void synchronize() {
    if (synchronized) return;
    gradients.settle();
    inner.synchronize();
    gradients.begin_step();
    synchronized = true;
  }

  Communicator& comm;
  const std::vector<ModuleTensor> buffers;
  const std::vector<ModuleTensor> parameters;
  Gradients gradients;
  tutti::Distributed<Gradients> inner;
  bool synchronized = false;
};

Distributed::Distributed(Communicator& comm, ::torch::optim::Optimizer& optimizer,
                         ::torch::nn::Module& module, const DistributedOptions& options)
    : state_(std::make_unique<State>(comm, optimizer, module, options)) {}
Distributed::~Distributed() = default;
Distributed::Distributed(Distributed&&) noexcept = default;

void Distributed::synchronize() { state_->synchronize(); }

void Distributed::step() {
  synchronize();
  state_->synchronized = false;
  state_->inner.step();
}

void Distributed::skip() {
  synchronize();
  state_->synchronized = false;
  state_->inner.skip();
}

void Distributed::zero_grad() { state_->gradients.zero_grad(); }

double Distributed::clip_by_global_norm(double most) {
  synchronize();
  return state_->gradients.clip_by_global_norm(most);
}

void Distributed::broadcast_buffers(int root) {
  broadcast_tensors(state_->comm, "buffer", state_->buffers, root);
}

void Distributed::consolidate() {
  state_->gradients.check_unchanged();
  state_->inner.consolidate();
}

int Distributed::backward_passes_per_step() const {
  return state_->inner.backward_passes_per_step();
}

double Distributed::noise_scale() const { return state_->inner.noise_scale(); }

std::vector<ExchangeState> Distributed::exchange_state() const {
  return state_->inner.exchange_state();
}

void check_version(int major, int minor) {
  if (major == TORCH_VERSION_MAJOR && minor == TORCH_VERSION_MINOR) return;
  throw Error(ErrorCode::version,
              fmt::format("this program is compiled for LibTorch {}.{} and tutti::torch for {}.{}; "
                          "build both with one LibTorch",
                          major, minor, TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR));
}

}  // namespace tutti::torch
