#include "tutti/core/calls/communicator_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/text.h"
#include "tutti/kernels/reduce.h"
#include "tutti/tensor/absent_memory.h"

namespace tutti {

Error refused(std::string_view name, const std::string& why) {
  return Error(ErrorCode::invalid_argument, fmt::format("{}: {}", shown_name(name), why))
      .with_tensor(name.substr(0, kLongestName));
}

Error op_means_nothing(std::string_view name, DataType dtype, ReduceOp op) {
  return refused(name,
                 fmt::format("op {} cannot be applied to {}", to_string(op), to_string(dtype)));
}

uint64_t layout_of(const TensorView& view) {
  if (view.is_row_major()) return 0;
  const auto strides = view.strides();
  return hash_bytes(std::as_bytes(std::span(strides)), 1);
}

namespace {

// Sets the fields of a request that depend on the options of a reduction.
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

}  // namespace

CommunicatorState::CommunicatorState(Options given, Membership member)
    : options(std::move(given)), membership(std::move(member)) {
  engine = make_engine(options, membership);
  membership.inheritance = nullptr;
  membership.parents_end = nullptr;
  capabilities = engine->backend().capabilities();
  if (options.mixed_devices) capabilities.devices.clear();
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
  throw refused(name, name.empty() ? "an operation needs a name by which the ranks match it"
                                   : fmt::format("a name of {} bytes was given; a name has at most "
                                                 "{} bytes and no control characters",
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
  require_present(name, view);
}

Device OperationCall::device(std::string_view name) const {
  const Device place = described().device();
  for (const auto* view : {input, output})
    if (view->data() != nullptr && view->device() != place)
      throw refused(name, fmt::format("the input lies on {} and the output on {}; give both on one "
                                      "device, or leave the output out",
                                      to_string(input->device()), to_string(output->device())));
  return place;
}

Request CommunicatorState::request(std::string_view name, const OperationCall& call) const {
  check_tensor(name, *call.input);
  check_tensor(name, *call.output);
  const auto& described = call.described();
  Request made;
  made.name = name;
  auto& signature = made.signature;
  signature.kind = call.kind;
  signature.dtype = signature.wire = described.dtype();
  signature.shape = described.shape();
  // With mixed devices the ranks have only host memory in common.
  signature.placement = options.mixed_devices ? DeviceKind::cpu : described.device().kind;
  signature.layout = layout_of(described);
  signature.root = call.root;
  if (reduces(call.kind)) set_reduction(made, *call.options);
  made.rows.assign(call.rows.begin(), call.rows.end());
  made.output_rows = call.output_rows;
  if (is_elementwise(call.kind)) return made;
  for (const auto* view : {call.input, call.output})
    if (!view->is_row_major())
      throw refused(name, fmt::format("{} takes row-major tensors, this one {}{} has strides [{}]",
                                      to_string(call.kind), to_string(view->dtype()),
                                      view->shape().to_string(), fmt::join(view->strides(), ",")));
  return made;
}

std::unique_ptr<Entry> CommunicatorState::entry(std::string_view name,
                                                const OperationCall& call) const {
  engine->check_not_forked(name);
  auto entry = std::make_unique<Entry>();
  entry->request = request(name, call);
  entry->input = *call.input;
  entry->output = *call.output;
  entry->library_output = call.library_output;
  entry->divide_output_by = call.divide_output_by;
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
  const Device device = entry.device();
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
  // If only the root describes the tensor, the other ranks do not know its device, so it cannot
  // stay there.
  const bool is_plain = !is_described_by_root(signature.kind) &&
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
  const Device device = entries.front()->device();
  auto& runtime = device_runtime(device.kind);
  work->gate_streams(runtime, device);
  for (auto& entry : entries) {
    entry->work = work;
    entry->ready = std::make_unique<StreamPoint>(runtime, device, entry->input.stream());
  }
  engine->submit(std::move(entries), ring);
  return work;
}

// Submits an operation on a device's memory.
std::shared_ptr<WorkState> CommunicatorState::submit(std::unique_ptr<Entry> entry, bool ring) {
  const Device device = entry->device();
  std::string name = entry->request.name;
  const bool stays = stays_on_device(*entry);
  std::vector<std::unique_ptr<Entry>> entries;
  entries.push_back(std::move(entry));
  if (stays) return submit_there(std::move(name), std::move(entries), ring);
  return staging(device).submit(std::move(name), std::move(entries));
}

std::shared_ptr<WorkState> CommunicatorState::submit_group(
    std::string_view group, std::vector<std::unique_ptr<Entry>> entries) {
  size_t index = 0;
  const Device device = entries.front()->device();
  for (auto& entry : entries) {
    if (entry->device() != device)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("group \"{}\": \"{}\" lives on {}, \"{}\" on {}; the tensors of a group "
                      "live on one device",
                      group, entries.front()->request.name, to_string(device), entry->request.name,
                      to_string(entry->device())))
          .with_tensor(entry->request.name);
    entry->output_index = index++;
    entry->request.signature.group = group;
    entry->request.signature.group_size = static_cast<int32_t>(entries.size());
  }
  const bool all_stay = std::all_of(entries.begin(), entries.end(),
                                    [&](const auto& entry) { return stays_on_device(*entry); });
  if (all_stay) return submit_there(std::string(group), std::move(entries), true);
  // All members of the group go through host memory, also those that could stay on the device.
  if (!capabilities.devices.empty())
    for (auto& entry : entries) entry->request.signature.placement = DeviceKind::cpu;
  return staging(device).submit(std::string(group), std::move(entries));
}

CommunicatorState::GroupWorks& CommunicatorState::group_works(std::string_view group) {
  std::string key(group);
  const auto found = group_works_.find(key);
  if (found != group_works_.end()) return found->second;
  // The entry of an unfinished Work also holds the Work, so the map may be cleared.
  if (group_works_.size() >= static_cast<size_t>(std::max<int64_t>(options.cache_capacity, 1024)))
    group_works_.clear();
  return group_works_[std::move(key)];
}

std::shared_ptr<WorkState> CommunicatorState::start(std::string_view name, DeclaredTensor* declared,
                                                    const OperationCall& call, bool ring) {
  if (call.device(name).kind != DeviceKind::cpu) return submit(entry(name, call), ring);
  Batch batch(*this, name);
  auto work = declared != nullptr ? batch.add(*declared, call) : batch.add(name, call);
  batch.commit(ring);
  return work;
}

std::shared_ptr<WorkState> CommunicatorState::start_group(std::string_view group,
                                                          std::span<const Member> members) {
  if (group.empty() || members.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("group \"{}\": a group has a name and at least one tensor", group));
  check_name(group);
  const bool on_host = std::ranges::all_of(members, [](const Member& member) {
    return member.call.device(member.name).kind == DeviceKind::cpu;
  });
  if (!on_host) {
    std::vector<std::unique_ptr<Entry>> entries;
    for (const auto& [name, call] : members) entries.push_back(entry(name, call));
    return submit_group(group, std::move(entries));
  }
  const int size = static_cast<int>(members.size());
  Batch batch(*this, group, group, size);
  std::shared_ptr<WorkState> work;
  if (members.front().call.library_output) {
    work = std::make_shared<WorkState>(engine, std::string(group), size);
  } else {
    auto& kept = group_works(group);
    batch.renew(kept.work, kept.last, group, size);
    work = kept.work;
  }
  size_t index = 0;
  for (const auto& [name, call] : members) batch.add(name, call, work, index++);
  batch.commit(true);
  return work;
}

std::vector<std::shared_ptr<WorkState>> CommunicatorState::start_together(
    std::span<const Member> members, bool ring) {
  std::vector<std::shared_ptr<WorkState>> works;
  const bool on_host = std::ranges::all_of(members, [](const Member& member) {
    return member.call.device(member.name).kind == DeviceKind::cpu;
  });
  if (!on_host) {
    for (const auto& [name, call] : members) works.push_back(start(name, nullptr, call, ring));
    return works;
  }
  Batch batch(*this, members.front().name);
  for (const auto& [name, call] : members) works.push_back(batch.add(name, call));
  batch.commit(ring);
  return works;
}

}  // namespace tutti
