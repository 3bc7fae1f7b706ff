// Submits operations on host memory. Each name has one Entry, which a call fills in place. If a
// call equals the last call of its name, the entry keeps its request, which is not checked again.

#include <algorithm>

#include "tutti/core/calls/communicator_state.h"
#include "tutti/tensor/absent_memory.h"

namespace tutti {

namespace {

const ReduceOptions kNothingReduced{.op = ReduceOp::sum};

}  // namespace

CommunicatorState::Batch::Batch(CommunicatorState& state, std::string_view name,
                                std::string_view group, int group_size)
    : state_(state), group_(group), group_size_(group_size), submission_(*state.engine, name) {}

void CommunicatorState::Batch::renew(std::shared_ptr<WorkState>& work,
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

const std::shared_ptr<WorkState>& CommunicatorState::Batch::add(std::string_view name,
                                                                const OperationCall& call,
                                                                std::shared_ptr<WorkState> work,
                                                                size_t output_index) {
  auto& entry = is_pair(call.kind) ? submission_.claim(pair_entry_key(name, call.root))
                                   : submission_.claim(name);
  const auto& made = fill(entry, name, call, nullptr, std::move(work));
  entry.output_index = output_index;
  return made;
}

const std::shared_ptr<WorkState>& CommunicatorState::Batch::add(DeclaredTensor& declared,
                                                                const OperationCall& call,
                                                                std::shared_ptr<WorkState> work) {
  const int64_t peer = is_pair(call.kind) ? call.root : DeclaredTensor::kNoPeer;
  if (declared.generation == submission_.generation() && declared.peer == peer) {
    submission_.claim(*declared.entry);
  } else {
    declared.entry = &(is_pair(call.kind) ? submission_.claim(pair_entry_key(declared.name, peer))
                                          : submission_.claim(declared.name));
    declared.generation = submission_.generation();
    declared.peer = peer;
  }
  return fill(*declared.entry, declared.name, call, &declared, std::move(work));
}

const std::shared_ptr<WorkState>& CommunicatorState::Batch::fill(Entry& entry,
                                                                 std::string_view name,
                                                                 const OperationCall& call,
                                                                 const DeclaredTensor* declared,
                                                                 std::shared_ptr<WorkState> work) {
  const auto& described = call.described();
  const auto& options = reduces(call.kind) ? *call.options : kNothingReduced;
  const int64_t place = declared == nullptr ? -1 : declared->place;
  const uint64_t layout = place >= 0 ? declared->layout : layout_of(described);
  auto& request = entry.request;
  auto& signature = request.signature;
  // The entry belongs to this name, so the names are not compared.
  const bool is_known =
      !request.name.empty() && signature.kind == call.kind &&
      signature.dtype == described.dtype() &&
      signature.wire == options.wire.value_or(described.dtype()) && signature.op == options.op &&
      signature.prescale == options.prescale && signature.postscale == options.postscale &&
      signature.priority == options.priority && signature.root == call.root &&
      signature.begin == 0 && signature.place == place && signature.layout == layout &&
      signature.placement == DeviceKind::cpu && signature.group_size == group_size_ &&
      signature.group == group_ && signature.shape == described.shape() &&
      request.output_rows == call.output_rows && std::ranges::equal(request.rows, call.rows) &&
      call.output->is_row_major() == described.is_row_major() && !request.join;
  if (!is_known) {
    Request made = state_.request(name, call);
    made.signature.group = group_;
    made.signature.group_size = group_size_;
    made.signature.place = place;
    made.signature.layout = layout;
    made.signature.updates = declared != nullptr && declared->update != nullptr;
    request = std::move(made);
    entry.plan_id = 0;
  } else if (call.input->data() == nullptr || call.output->data() == nullptr ||
             AbsentMemory::any()) {
    state_.check_tensor(name, *call.input);
    state_.check_tensor(name, *call.output);
  }
  entry.input = *call.input;
  entry.output = *call.output;
  entry.library_output = call.library_output;
  entry.shared = declared != nullptr && declared->shared;
  entry.update = declared == nullptr ? nullptr : declared->update;
  entry.divide_output_by = call.divide_output_by;
  entry.output_index = 0;
  entry.sent_id = -1;
  entry.left = entry.final_end = 0;
  // A reused Work would keep the output that the library made for the last call.
  entry.reuses_work = work == nullptr && !call.library_output;
  if (work)
    entry.work = std::move(work);
  else if (entry.reuses_work)
    renew(entry.work, entry.last_work, name, 1);
  else
    entry.work = std::make_shared<WorkState>(state_.engine, std::string(name), 1);
  if (call.kind == CollectiveKind::recv && call.root >= 0) entry.work->set_source(call.root);
  return entry.work;
}

}  // namespace tutti
