#include "tutti/core/communicator_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "tutti/kernels/reduce.h"

namespace tutti {

CommunicatorState::CommunicatorState(Options given, Membership member)
    : options(std::move(given)), membership(std::move(member)) {
  engine = make_engine(options, membership);
  const auto host = engine->context().hosts();
  const auto own = static_cast<size_t>(options.rank);
  local_size = static_cast<int>(std::count(host.begin(), host.end(), host[own]));
  local_rank = static_cast<int>(
      std::count(host.begin(), host.begin() + static_cast<std::ptrdiff_t>(own), host[own]));
  hosts = *std::max_element(host.begin(), host.end()) + 1;
  engine->start();
}

CommunicatorState::~CommunicatorState() {
  engine->close();
  stagings_.clear();
  // In a forked child the sockets and rings still belong to the parent's conversation: leave them
  // untouched. The memory goes with the child.
  if (engine->forked()) static_cast<void>(new (std::nothrow) std::shared_ptr<Engine>(engine));
}

void CommunicatorState::check_tensor(std::string_view name, const TensorView& view) const {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::invalid_argument, fmt::format("\"{}\": {}", name, why))
        .with_rank(options.rank)
        .with_tensor(name);
  };
  if (name.empty()) throw refuse("an operation needs a name by which the ranks match it");
  constexpr size_t kLongest = 4096;
  if (name.size() > kLongest || name.find('\n') != name.npos)
    throw refuse("a name has at most 4096 bytes and no line break");
  if (view.data() == nullptr && view.count() > 0)
    throw refuse(fmt::format("the tensor {}{} of rank {} has no memory", to_string(view.dtype()),
                             view.shape().to_string(), options.rank));
}

std::unique_ptr<Entry> CommunicatorState::entry(std::string_view name, CollectiveKind kind,
                                                TensorView input, TensorView output) const {
  check_tensor(name, input);
  check_tensor(name, output);
  auto entry = std::make_unique<Entry>();
  entry->request.name = name;
  auto& signature = entry->request.signature;
  signature.kind = kind;
  signature.dtype = signature.wire = input.dtype();
  signature.shape = input.shape();
  signature.placement = input.device().kind;
  entry->input = std::move(input);
  entry->output = std::move(output);
  return entry;
}

void CommunicatorState::check_root(std::string_view name, int root) const {
  if (root >= 0 && root < options.size) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\": rank {} of {} does not exist; ranks are 0 to {}", name, root,
                          options.size, options.size - 1))
      .with_tensor(name);
}

Staging& CommunicatorState::staging(Device device) {
  const std::lock_guard lock(mutex_);
  for (auto& [known, staging] : stagings_)
    if (known == device) return *staging;
  stagings_.emplace_back(device, std::make_unique<Staging>(engine, device));
  return *stagings_.back().second;
}

Work CommunicatorState::submit(std::unique_ptr<Entry> entry, bool ring) {
  if (const Device device = entry->input.device(); device.kind != DeviceKind::cpu) {
    std::string name = entry->request.name;
    std::vector<std::unique_ptr<Entry>> entries;
    entries.push_back(std::move(entry));
    return Work(staging(device).submit(std::move(name), std::move(entries)));
  }
  auto work = std::make_shared<WorkState>(engine, entry->request.name, 1);
  entry->work = work;
  std::vector<std::unique_ptr<Entry>> entries;
  entries.push_back(std::move(entry));
  engine->submit(std::move(entries), ring);
  return Work(std::move(work));
}

Work CommunicatorState::submit_group(std::string_view group,
                                     std::vector<std::unique_ptr<Entry>> entries) {
  if (group.empty() || entries.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("group \"{}\": a group has a name and at least one tensor", group));
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
  if (device.kind != DeviceKind::cpu)
    return Work(staging(device).submit(std::string(group), std::move(entries)));
  auto work =
      std::make_shared<WorkState>(engine, std::string(group), static_cast<int>(entries.size()));
  for (auto& entry : entries) entry->work = work;
  engine->submit(std::move(entries), true);
  return Work(std::move(work));
}

int64_t CommunicatorState::declare(Declared declared) {
  const std::lock_guard lock(mutex_);
  declared_.push_back(std::make_unique<Declared>(std::move(declared)));
  return static_cast<int64_t>(declared_.size()) - 1;
}

const CommunicatorState::Declared& CommunicatorState::declared(int64_t id) const {
  const std::lock_guard lock(mutex_);
  if (id < 0 || id >= static_cast<int64_t>(declared_.size()))
    throw Error(ErrorCode::invalid_argument,
                "this TensorHandle was not made by declare() of this Communicator");
  return *declared_[static_cast<size_t>(id)];
}

}  // namespace tutti
