#include "tutti/core/life/communicator_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/text.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

Error refused(std::string_view name, const std::string& why) {
  return Error(ErrorCode::invalid_argument, fmt::format("{}: {}", shown_name(name), why))
      .with_tensor(name.substr(0, kLongestName));
}

Error op_means_nothing(std::string_view name, DataType dtype, ReduceOp op) {
  return refused(name, fmt::format("op {} means nothing on {}", to_string(op), to_string(dtype)));
}

uint64_t layout_of(const TensorView& view) {
  if (view.is_row_major()) return 0;
  const auto strides = view.strides();
  return hash_bytes(std::as_bytes(std::span(strides)), 1);
}

void set_reduction(Request& request, const ReduceOptions& options) {
  auto& signature = request.signature;
  signature.op = options.op;
  signature.prescale = options.prescale;
  signature.postscale = options.postscale;
  signature.priority = options.priority;
  if (options.wire) {
    if (!is_float(signature.dtype) || !is_float(*options.wire))
      throw refused(request.name,
                    fmt::format("{} cannot travel as {}; a wire type is for floats",
                                to_string(signature.dtype), to_string(*options.wire)));
    signature.wire = *options.wire;
  }
  if (!can_reduce(signature.dtype, options.op))
    throw op_means_nothing(request.name, signature.dtype, options.op);
}

CommunicatorState::CommunicatorState(Options given, Membership member)
    : options(std::move(given)), membership(std::move(member)) {
  engine = make_engine(options, membership);
  membership.inheritance = nullptr;
  capabilities = engine->backend().capabilities();
  const auto host = engine->context().hosts();
  const auto own = static_cast<size_t>(options.rank);
  local_size = static_cast<int>(std::count(host.begin(), host.end(), host[own]));
  local_rank = static_cast<int>(
      std::count(host.begin(), host.begin() + static_cast<std::ptrdiff_t>(own), host[own]));
  hosts = *std::max_element(host.begin(), host.end()) + 1;
}

CommunicatorState::~CommunicatorState() {
  engine->close();
  stagings_.clear();
}

void CommunicatorState::check_name(std::string_view name) const {
  if (is_operation_name(name)) return;
  throw refused(name, name.empty()
                          ? "an operation needs a name by which the ranks match it"
                          : fmt::format("a name of {} bytes was given; one has at most {} and no "
                                        "control characters",
                                        name.size(), kLongestName))
      .with_rank(options.rank);
}

void CommunicatorState::check_tensor(std::string_view name, const TensorView& view) const {
  check_name(name);
  if (view.data() == nullptr && view.count() > 0)
    throw refused(name,
                  fmt::format("the tensor {}{} of rank {} has no memory", to_string(view.dtype()),
                              view.shape().to_string(), options.rank))
        .with_rank(options.rank);
}

std::unique_ptr<Entry> CommunicatorState::entry(std::string_view name, CollectiveKind kind,
                                                TensorView input, TensorView output) const {
  engine->check_not_forked(name);
  check_tensor(name, input);
  check_tensor(name, output);
  auto entry = std::make_unique<Entry>();
  entry->request.name = name;
  auto& signature = entry->request.signature;
  signature.kind = kind;
  signature.dtype = signature.wire = input.dtype();
  signature.shape = input.shape();
  signature.placement = input.device().kind;
  signature.layout = layout_of(input);
  if ((signature.layout != 0 || !output.is_row_major()) && kind != CollectiveKind::allreduce &&
      kind != CollectiveKind::reduce && kind != CollectiveKind::broadcast)
    throw refused(name, fmt::format("{} takes row-major tensors, this one {}{} has strides [{}]",
                                    to_string(kind), to_string(input.dtype()),
                                    input.shape().to_string(), fmt::join(input.strides(), ",")));
  entry->input = std::move(input);
  entry->output = std::move(output);
  return entry;
}

void CommunicatorState::check_root(std::string_view name, int root) const {
  if (root >= 0 && root < options.size) return;
  throw refused(name, fmt::format("rank {} of {} does not exist; ranks are 0 to {}", root,
                                  options.size, options.size - 1));
}

Staging& CommunicatorState::staging(Device device) {
  const std::lock_guard lock(mutex_);
  for (auto& [known, staging] : stagings_)
    if (known == device) return *staging;
  stagings_.emplace_back(device, Staging::make(engine, device));
  return *stagings_.back().second;
}

bool CommunicatorState::stays_on_device(const Entry& entry) {
  const Device device = entry.input.device();
  const auto& signature = entry.request.signature;
  const auto same_kind =
      std::find_if(capabilities.devices.begin(), capabilities.devices.end(),
                   [&](const auto& service) { return service.device.kind == device.kind; });
  if (same_kind == capabilities.devices.end()) return false;
  const Device served = same_kind->device;
  if (device != served)
    throw refused(entry.request.name,
                  fmt::format("the tensor of rank {} lives on {}, but this communicator works on "
                              "{}; give it memory of that device",
                              options.rank, to_string(device), to_string(served)))
        .with_rank(options.rank);
  // Only the root of a scatter has memory that says where it is.
  const bool is_plain = signature.kind != CollectiveKind::scatter &&
                        signature.wire == signature.dtype && signature.prescale == 1.0 &&
                        signature.postscale == 1.0 && entry.divide_output_by == 1;
  if ((is_plain || signature.kind == CollectiveKind::allreduce) &&
      capabilities.serves_on(device, signature.kind, signature.wire, signature.op))
    return true;
  const auto what = fmt::format(
      "{} of {}{}", to_string(signature.kind), to_string(signature.wire),
      reduces(signature.kind) ? fmt::format(" with {}", to_string(signature.op)) : std::string());
  const std::lock_guard lock(mutex_);
  if (told_.insert(what).second && options.rank == 0)
    engine->log(LogLevel::info,
                fmt::format("backend {} does not run {} on {}: it goes through host memory",
                            capabilities.name, what, to_string(device)));
  return false;
}

std::shared_ptr<WorkState> CommunicatorState::submit_there(
    std::string name, std::vector<std::unique_ptr<Entry>> entries, bool ring) {
  auto work =
      std::make_shared<WorkState>(engine, std::move(name), static_cast<int>(entries.size()));
  const Device device = entries.front()->input.device();
  auto& runtime = device_runtime(device.kind);
  work->gate_streams(runtime);
  for (auto& entry : entries) {
    entry->work = work;
    entry->ready = std::make_unique<StreamPoint>(runtime, device, entry->input.stream());
  }
  engine->submit(std::move(entries), ring);
  return work;
}

std::shared_ptr<WorkState> CommunicatorState::submit(std::unique_ptr<Entry> entry, bool ring) {
  if (const Device device = entry->input.device(); device.kind != DeviceKind::cpu) {
    std::string name = entry->request.name;
    const bool stays = stays_on_device(*entry);
    std::vector<std::unique_ptr<Entry>> entries;
    entries.push_back(std::move(entry));
    if (stays) return submit_there(std::move(name), std::move(entries), ring);
    return staging(device).submit(std::move(name), std::move(entries));
  }
  auto work = std::make_shared<WorkState>(engine, entry->request.name, 1);
  entry->work = work;
  std::vector<std::unique_ptr<Entry>> entries;
  entries.push_back(std::move(entry));
  engine->submit(std::move(entries), ring);
  return work;
}

std::shared_ptr<WorkState> CommunicatorState::submit_group(
    std::string_view group, std::vector<std::unique_ptr<Entry>> entries) {
  if (group.empty() || entries.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("group \"{}\": a group has a name and at least one tensor", group));
  check_name(group);
  size_t index = 0;
  const Device device = entries.front()->input.device();
  for (auto& entry : entries) {
    if (entry->input.device() != device)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("group \"{}\": \"{}\" lives on {}, \"{}\" on {}; the tensors of a group "
                      "live on one device",
                      group, entries.front()->request.name, to_string(device), entry->request.name,
                      to_string(entry->input.device())))
          .with_tensor(entry->request.name);
    entry->output_index = index++;
    entry->request.signature.group = group;
    entry->request.signature.group_size = static_cast<int32_t>(entries.size());
  }
  if (device.kind != DeviceKind::cpu) {
    const bool all_stay = std::all_of(entries.begin(), entries.end(),
                                      [&](const auto& entry) { return stays_on_device(*entry); });
    if (all_stay) return submit_there(std::string(group), std::move(entries), true);
    // All of them travel as memory of the host, also those that could stay.
    if (!capabilities.devices.empty())
      for (auto& entry : entries) entry->request.signature.placement = DeviceKind::cpu;
    return staging(device).submit(std::string(group), std::move(entries));
  }
  auto work =
      std::make_shared<WorkState>(engine, std::string(group), static_cast<int>(entries.size()));
  for (auto& entry : entries) entry->work = work;
  engine->submit(std::move(entries), true);
  return work;
}

CommunicatorState::GroupWorks& CommunicatorState::group_works(std::string_view group) {
  std::string key(group);
  const auto found = group_works_.find(key);
  if (found != group_works_.end()) return found->second;
  // The Works that are not done are held by their entries.
  if (group_works_.size() >= static_cast<size_t>(std::max<int64_t>(options.cache_capacity, 1024)))
    group_works_.clear();
  return group_works_[std::move(key)];
}

// --- allreduces ---------------------------------------------------------------------------------

CommunicatorState::Allreduces::Allreduces(CommunicatorState& state, std::string_view name,
                                          std::string_view group, int group_size,
                                          const ReduceOptions& options)
    : state_(state),
      group_(group),
      group_size_(group_size),
      options_(options),
      submission_(*state.engine, name) {}

void CommunicatorState::Allreduces::renew(std::shared_ptr<WorkState>& work,
                                          std::shared_ptr<WorkState>& last, std::string_view name,
                                          int parts) {
  std::swap(work, last);
  if (work && work.use_count() == 1 && work->done()) {
    work->reuse(parts);
    return;
  }
  submission_.count_allocation();
  work = std::make_shared<WorkState>(state_.engine, std::string(name), parts);
}

const std::shared_ptr<WorkState>& CommunicatorState::Allreduces::add(
    std::string_view name, const TensorView& input, const TensorView& output,
    std::shared_ptr<WorkState> work) {
  return fill(submission_.claim(name), name, input, output, nullptr, std::move(work));
}

const std::shared_ptr<WorkState>& CommunicatorState::Allreduces::add(
    DeclaredTensor& declared, const TensorView& tensor, std::shared_ptr<WorkState> work) {
  if (declared.generation == submission_.generation()) {
    submission_.claim(*declared.entry);
  } else {
    declared.entry = &submission_.claim(declared.name);
    declared.generation = submission_.generation();
  }
  if (tensor.shape() != declared.shape) {
    const auto shaped = tensor.reshaped(declared.shape);
    return fill(*declared.entry, declared.name, shaped, shaped, &declared, std::move(work));
  }
  return fill(*declared.entry, declared.name, tensor, tensor, &declared, std::move(work));
}

const std::shared_ptr<WorkState>& CommunicatorState::Allreduces::fill(
    Entry& entry, std::string_view name, const TensorView& input, const TensorView& output,
    const DeclaredTensor* declared, std::shared_ptr<WorkState> work) {
  const int64_t place = declared == nullptr ? -1 : declared->place;
  const uint64_t layout = place >= 0 ? declared->layout : layout_of(input);
  auto& request = entry.request;
  auto& signature = request.signature;
  // The entry is the name's own.
  const bool is_known =
      !request.name.empty() && signature.kind == CollectiveKind::allreduce &&
      signature.dtype == input.dtype() && signature.wire == options_.wire.value_or(input.dtype()) &&
      signature.op == options_.op && signature.prescale == options_.prescale &&
      signature.postscale == options_.postscale && signature.priority == options_.priority &&
      signature.begin == 0 && signature.place == place && signature.layout == layout &&
      signature.placement == DeviceKind::cpu && signature.group_size == group_size_ &&
      signature.group == group_ && signature.shape == input.shape() && !request.join;
  if (!is_known) {
    state_.check_tensor(name, input);
    if (!group_.empty()) state_.check_name(group_);
    Request made;
    made.name = name;
    made.signature.dtype = made.signature.wire = input.dtype();
    made.signature.shape = input.shape();
    made.signature.group = group_;
    made.signature.group_size = group_size_;
    made.signature.place = place;
    made.signature.layout = layout;
    set_reduction(made, options_);
    request = std::move(made);
    entry.plan_id = 0;
  } else if (input.data() == nullptr || output.data() == nullptr) {
    state_.check_tensor(name, input);
    state_.check_tensor(name, output);
  }
  entry.input = input;
  entry.output = output;
  entry.library_output = false;
  entry.shared = declared != nullptr && declared->shared;
  entry.update = declared == nullptr ? nullptr : declared->update;
  entry.divide_output_by = 1;
  entry.output_index = 0;
  entry.sent_id = -1;
  entry.left = entry.final_end = 0;
  entry.reuses_work = work == nullptr;
  if (work)
    entry.work = std::move(work);
  else
    renew(entry.work, entry.last_work, name, 1);
  return entry.work;
}

}  // namespace tutti
