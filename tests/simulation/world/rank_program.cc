// The program of a rank: its threads submit, wait, block and close as their scripts say.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/simulation/contents.h"
#include "tests/simulation/judge/oracle.h"
#include "tests/simulation/world/rank.h"
#include "tests/simulation/world/world.h"

namespace tutti::simulation {

namespace {

using std::chrono::microseconds;

// Memory that the program shares with its peers. `on_free` is called when it is freed.
class ProgramRegion final : public Region {
 public:
  ProgramRegion(std::shared_ptr<Region> memory, std::function<void()> on_free)
      : memory_(std::move(memory)), on_free_(std::move(on_free)) {}
  ~ProgramRegion() override { on_free_(); }
  std::byte* data() const override { return memory_->data(); }
  size_t bytes() const override { return memory_->bytes(); }

 private:
  const std::shared_ptr<Region> memory_;
  const std::function<void()> on_free_;
};

bool is_rooted_at(const Operation& operation, int rank) { return operation.root == rank; }

Shape shape_of(const Operation& operation, int64_t rows) {
  return operation.width == 0 ? Shape{rows} : Shape{rows, operation.width};
}

}  // namespace

OperationRecord& SimRank::record_of(const Use& use) {
  return world_.record().operations.at(use.record);
}

// --- threads ------------------------------------------------------------------------------------

void SimRank::resume(Thread& thread, Clock::duration delay) {
  if (thread.is_resuming || thread.is_over) return;
  thread.is_resuming = true;
  world_.events().after(delay, [this, &thread] {
    thread.is_resuming = false;
    if (is_killed_) return;
    if (is_standing_still()) return resume(thread, frozen_until_ - world_.events().now());
    run(thread);
  });
}

void SimRank::run(Thread& thread) {
  if (thread.waits) {
    auto& work = *thread.awaited.back();
    if (!work.done()) return;
    thread.waits = false;
    work.waiters.fetch_sub(1);
    thread.awaited.pop_back();
    thread.has_waited = true;
    if (!wait(thread)) return;
    ++thread.at;
  }
  while (thread.at < thread.script->size()) {
    if (!act(thread, (*thread.script)[thread.at])) return;
    ++thread.at;
    if (random_.chance(400)) return resume(thread, microseconds(random_.between(0, 60)));
  }
  thread.is_over = true;
  for (const auto& other : threads_)
    if (!other.is_over) return;
  close({});
}

bool SimRank::act(Thread& thread, const Action& action) {
  switch (action.kind) {
    case Action::Kind::submit:
      submit(thread, action, true);
      return true;
    case Action::Kind::wait: {
      // Waits for the last operation with that name, or for all of them, beginning with the first.
      std::vector<Use*> rest;
      const auto is_meant = [&](const Use& use) {
        if (action.text.empty() || use.operation == nullptr) return true;
        const auto& from = (*thread.script)[static_cast<size_t>(record_of(use).site.action)];
        return use.operation->name == action.text || from.text == action.text;
      };
      const auto last = std::ranges::find_if(thread.unwaited.rbegin(), thread.unwaited.rend(),
                                             [&](const Use* use) { return is_meant(*use); });
      const auto* last_work = last == thread.unwaited.rend() ? nullptr : (*last)->work.get();
      for (auto use = thread.unwaited.rbegin(); use != thread.unwaited.rend(); ++use) {
        const bool is_one =
            is_meant(**use) && (action.text.empty() || (*use)->work.get() == last_work);
        if (!is_one)
          rest.insert(rest.begin(), *use);
        else if (thread.awaited.empty() || thread.awaited.back() != (*use)->work)
          thread.awaited.push_back((*use)->work);
      }
      thread.unwaited = std::move(rest);
      return wait(thread);
    }
    case Action::Kind::block:
      return block(thread, action);
    case Action::Kind::join:
      submit_join(thread);
      return action.text.empty() ? wait(thread) : true;
    case Action::Kind::pause:
      ++thread.at;
      resume(thread, microseconds(action.time));
      return false;
    case Action::Kind::allocate:
      allocate(static_cast<size_t>(action.time));
      return true;
    case Action::Kind::retire:
      if (region_) {
        retired_.push_back(std::move(region_));
        memory_.reset();
        ring();
      }
      return true;
    case Action::Kind::close:
      close(action.text);
      return true;
  }
  return true;
}

// Returns false if the thread waits. A waiting thread drives the node itself.
bool SimRank::wait(Thread& thread) {
  while (!thread.awaited.empty()) {
    auto& work = *thread.awaited.back();
    if (work.done()) {
      thread.awaited.pop_back();
      thread.has_waited = true;
      continue;
    }
    work.waiting_since.store(world_.events().now().time_since_epoch().count());
    work.waiters.fetch_add(1);
    thread.waits = true;
    world_.note(rank_, "waits for", work.name());
    plan_turn(world_.events().now());
    return false;
  }
  auto& record = world_.record_of(rank_);
  record.steps.push_back({record.negotiation_messages, node_->scheduler().allocations()});
  return true;
}

// --- submissions --------------------------------------------------------------------------------

std::optional<Error> SimRank::why_refused(std::string_view name) const {
  if (is_usable()) return {};
  if (broken_) return named(*broken_, name);
  return Error(ErrorCode::closed, fmt::format("\"{}\": this Communicator is closed", name));
}

void SimRank::refuse(Thread& thread, const Action& action, const Error& error) {
  const size_t count = std::max<size_t>(action.operations.size(), 1);
  for (size_t i = 0; i < count; ++i) {
    OperationRecord record;
    record.site = {rank_, thread.number, static_cast<int>(thread.at), static_cast<int>(i)};
    record.name = action.operations.empty() ? "join" : action.operations[i].name;
    record.submitted = world_.micros();
    record.ended = world_.micros();
    record.is_refused = true;
    record.error_code = static_cast<int>(error.code());
    record.error_rank = error.rank();
    record.error_text = error.what();
    world_.record().operations.push_back(std::move(record));
  }
  world_.note(rank_, "is refused", std::string_view(error.what()));
}

SimRank::Use& SimRank::make_use(const Thread& thread, const Operation& operation, int index,
                                bool in_place) {
  auto& use = uses_.emplace_back();
  use.operation = &operation;
  use.record = world_.record().operations.size();
  auto& record = world_.record().operations.emplace_back();
  record.site = {rank_, thread.number, static_cast<int>(thread.at), index};
  record.name = operation.name;
  record.submitted = world_.micros();
  const int size = context_.size;
  const auto kind = operation.kind;
  const bool is_root = is_rooted_at(operation, rank_);
  const bool has_input = kind != CollectiveKind::barrier && kind != CollectiveKind::recv &&
                         (kind != CollectiveKind::broadcast || is_root) &&
                         (kind != CollectiveKind::scatter || is_root);
  const auto bytes = static_cast<size_t>(operation.bytes());
  const auto row = static_cast<size_t>(operation.row() * size_of(operation.dtype));
  const auto input = has_input ? fill_input(operation, rank_) : std::vector<std::byte>();
  use.in_bytes = input.size();
  switch (kind) {
    case CollectiveKind::allreduce:
    case CollectiveKind::recv:
    case CollectiveKind::broadcast:
      use.out_bytes = bytes;
      break;
    case CollectiveKind::reduce:
      use.out_bytes = is_root ? bytes : 0;
      break;
    case CollectiveKind::allgather:
      use.out_bytes = bytes * static_cast<size_t>(size);
      break;
    case CollectiveKind::gather:
      use.out_bytes = is_root ? bytes * static_cast<size_t>(size) : 0;
      break;
    case CollectiveKind::scatter:
    case CollectiveKind::reduce_scatter:
      use.out_bytes = row * static_cast<size_t>(rows_of(operation, rank_, size));
      break;
    case CollectiveKind::alltoall:
      use.out_bytes = bytes;
      break;
    case CollectiveKind::send:
    case CollectiveKind::barrier:
      break;
  }
  in_place |= kind == CollectiveKind::broadcast;
  const bool is_one =
      in_place && (kind == CollectiveKind::allreduce || kind == CollectiveKind::broadcast);
  // An output may also lie in memory that the peers reach.
  const auto take = [&](size_t wanted) -> std::byte* {
    if (!memory_ || taken_ + wanted > memory_->bytes()) return nullptr;
    return memory_->data() + std::exchange(taken_, taken_ + wanted);
  };
  const bool is_reached = world_.from().world.over_memory;
  std::byte* shared_in = is_one ? nullptr : take(use.in_bytes);
  std::byte* shared_out =
      is_reached && memory_ && random_.chance(600) ? take(use.out_bytes) : nullptr;
  record.is_reached = shared_out != nullptr;
  const size_t own_in = shared_in != nullptr || is_one ? 0 : use.in_bytes;
  const size_t own_out = shared_out != nullptr ? 0 : use.out_bytes;
  use.memory.assign(own_in + own_out + 1, kUntouched);
  use.out = shared_out != nullptr ? shared_out : use.memory.data() + own_in;
  if (is_one)
    use.in = use.out;
  else
    use.in = shared_in != nullptr ? shared_in : use.memory.data();
  std::ranges::copy(input, use.in);
  use.given.assign(use.in, use.in + use.in_bytes);
  return use;
}

void SimRank::fill_entry(Entry& entry, Use& use, const std::string& group, size_t group_size) {
  const auto& operation = *use.operation;
  const auto kind = operation.kind;
  const bool is_root = is_rooted_at(operation, rank_);
  Request request;
  request.name = operation.name;
  auto& signature = request.signature;
  signature.kind = kind;
  signature.dtype = signature.wire = operation.dtype;
  signature.shape = shape_of(operation, operation.rows);
  signature.root = operation.root;
  if (reduces(kind)) signature.op = operation.op;
  signature.group = group;
  signature.group_size = static_cast<int32_t>(group_size);
  const TensorView given(use.in, signature.shape, operation.dtype);
  const TensorView taken(use.out, signature.shape, operation.dtype);
  entry.input = entry.output = TensorView();
  entry.library_output = false;
  const auto all_rows = [&] {
    for (int rank = 0; rank < context_.size; ++rank)
      request.rows.push_back(rows_of(operation, rank, context_.size));
  };
  switch (kind) {
    case CollectiveKind::allreduce:
    case CollectiveKind::broadcast:
      entry.input = kind == CollectiveKind::broadcast && !is_root ? taken : given;
      entry.output = taken;
      break;
    case CollectiveKind::reduce:
      entry.input = given;
      if (is_root) entry.output = taken;
      break;
    case CollectiveKind::allgather:
    case CollectiveKind::gather:
      entry.input = given;
      entry.library_output = true;
      break;
    case CollectiveKind::alltoall:
      all_rows();
      entry.input = given;
      entry.library_output = true;
      break;
    case CollectiveKind::reduce_scatter:
      if (!operation.splits.empty()) all_rows();
      entry.input = given;
      entry.library_output = true;
      break;
    case CollectiveKind::scatter:
      entry.library_output = true;
      if (is_root) {
        if (!operation.splits.empty()) all_rows();
        entry.input = given;
      } else {
        signature.shape = TensorView().shape();
        signature.dtype = signature.wire = TensorView().dtype();
      }
      break;
    case CollectiveKind::send:
      entry.input = entry.output = given;
      break;
    case CollectiveKind::recv:
      entry.input = entry.output = taken;
      break;
    case CollectiveKind::barrier:
      signature.shape = TensorView().shape();
      signature.dtype = signature.wire = TensorView().dtype();
      signature.root = 0;
      break;
  }
  if (!is_pair(kind) && kind != CollectiveKind::broadcast && kind != CollectiveKind::reduce &&
      kind != CollectiveKind::gather && kind != CollectiveKind::scatter)
    signature.root = 0;
  use.is_library = entry.library_output;
  // The entry of a name keeps its plan as long as the request stays the same.
  if (!(entry.request.signature == signature && entry.request.rows == request.rows))
    entry.plan_id = 0;
  entry.request = std::move(request);
  entry.update = nullptr;
  entry.shared = false;
  entry.output_index = use.output_index;
  entry.sent_id = -1;
  entry.left = entry.final_end = 0;
  entry.divide_output_by = 1;
  entry.reuses_work = false;
  entry.work = use.work;
  if (kind == CollectiveKind::recv && operation.root >= 0) use.work->set_source(operation.root);
}

bool SimRank::submit(Thread& thread, const Action& action, bool rings) {
  const auto& first = action.operations.front();
  if (const auto why = why_refused(first.name)) {
    refuse(thread, action, *why);
    return false;
  }
  // Either all operations are accepted, or none.
  std::vector<Entry*> entries;
  const std::string* twice = nullptr;
  for (const auto& operation : action.operations) {
    const auto key =
        is_pair(operation.kind) ? pair_entry_key(operation.name, operation.root) : operation.name;
    auto& entry = entries_.at(key);
    if (entry.pending && twice == nullptr) twice = &operation.name;
    if (twice != nullptr) break;
    entry.pending = true;
    entries.push_back(&entry);
  }
  if (twice != nullptr) {
    for (auto* entry : entries) entry->pending = false;
    refuse(thread, action, Error(ErrorCode::duplicate_name, *twice + " is pending already"));
    return false;
  }
  const bool is_group = !action.text.empty() && action.kind == Action::Kind::submit;
  std::shared_ptr<WorkState> work;
  if (is_group)
    work = std::make_shared<WorkState>(driver_, action.text,
                                       static_cast<int>(action.operations.size()));
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& operation = action.operations[i];
    auto& use = make_use(thread, operation, static_cast<int>(i), random_.chance(500));
    use.work = work ? work : std::make_shared<WorkState>(driver_, operation.name, 1);
    use.output_index = is_group ? i : 0;
    fill_entry(*entries[i], use, is_group ? action.text : std::string(),
               is_group ? action.operations.size() : 0);
    if (action.kind == Action::Kind::submit)
      use.work->then([this, &use](const std::exception_ptr&) {
        if (is_killed_) return;
        ++record_of(use).callbacks;
      });
    thread.unwaited.push_back(&use);
    open_.push_back(&use);
    world_.note(rank_, "submits", operation.name);
  }
  ++world_.record_of(rank_).batches;
  commit(thread, entries, rings);
  return true;
}

void SimRank::commit(Thread& thread, std::span<Entry* const> entries, bool rings) {
  bool has_waited = std::exchange(thread.has_waited, false);
  for (auto* entry : entries) {
    entry->submitted = world_.events().now();
    entry->order = ++submissions_;
    entry->request.after_wait = std::exchange(has_waited, false);
    submitted_bytes_ += entry->input.bytes();
    if (entry->plan_id != quiet_plan_ || !entry->fits_plan) quiet_bytes_ = 0;
    submitted_.push_back(entry);
  }
  if (rings && submitted_bytes_ >= quiet_bytes_) ring();
}

void SimRank::submit_join(Thread& thread) {
  const auto& action = (*thread.script)[thread.at];
  auto& entry = entries_.at("join\n");
  if (const auto why = why_refused("join")) return refuse(thread, action, *why);
  if (entry.pending)
    return refuse(thread, action, Error(ErrorCode::duplicate_name, "it has joined already"));
  auto& use = uses_.emplace_back();
  use.record = world_.record().operations.size();
  auto& record = world_.record().operations.emplace_back();
  record.site = {rank_, thread.number, static_cast<int>(thread.at), 0};
  record.name = "join";
  record.submitted = world_.micros();
  use.work = std::make_shared<WorkState>(driver_, "join", 1);
  entry.request = Request();
  entry.request.name = "join\n";
  entry.request.join = true;
  entry.input = entry.output = TensorView();
  entry.work = use.work;
  entry.pending = true;
  entry.submitted = world_.events().now();
  entry.order = ++submissions_;
  open_.push_back(&use);
  thread.awaited.push_back(use.work);
  joins_.push_back(&entry);
  world_.note(rank_, "joins");
  ring();
}

// --- ends ---------------------------------------------------------------------------------------

void SimRank::on_work_over(WorkState& work) {
  std::optional<Error> why;
  if (const auto thrown = work.exception()) try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      why = error;
    }
  for (size_t i = 0; i < open_.size();) {
    auto& use = *open_[i];
    if (use.work.get() != &work) {
      ++i;
      continue;
    }
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    end_use(use, why ? &*why : nullptr);
  }
}

void SimRank::end_use(Use& use, const Error* error) {
  use.is_over = true;
  use.final_out.assign(use.out, use.out + use.out_bytes);
  auto& record = record_of(use);
  record.ended = world_.micros();
  record.input_changed =
      !std::equal(use.given.begin(), use.given.end(), use.in) ||
      (error != nullptr && use.in != use.out &&
       std::ranges::any_of(use.final_out, [](std::byte byte) { return byte != kUntouched; }));
  if (error != nullptr) {
    record.error_code = static_cast<int>(error->code());
    record.error_rank = error->rank();
    record.error_text = error->what();
    return;
  }
  if (use.operation == nullptr) return;
  if (use.is_library) {
    const auto output = use.work->output(use.output_index);
    const auto bytes = static_cast<size_t>(output.bytes());
    if (bytes > 0) record.output.assign(output.data(), output.data() + bytes);
  } else {
    record.output = use.final_out;
  }
  if (use.operation->kind == CollectiveKind::recv && use.work) record.source = use.work->source();
}

void SimRank::close(const std::string& error) {
  if (is_closing_) return;
  is_closing_ = true;
  closing_error_ = error;
  door_ = after_close(door_);
  world_.record_of(rank_).closing = world_.micros();
  world_.record_of(rank_).closing_error = error;
  world_.note(rank_, "closes", error);
  ring();
}

void SimRank::allocate(size_t bytes) {
  memory_ = end_->allocate(bytes, {});
  std::fill_n(memory_->data(), bytes, kUntouched);
  taken_ = 0;
  region_ = std::make_unique<ProgramRegion>(memory_, [this, memory = memory_] {
    if (is_past_) return;
    if (!is_killed_ && world_.net().is_used(rank_, memory->data(), memory->bytes()))
      world_.record_of(rank_).memory_retired_in_use = true;
    let_go_of(memory);
  });
}

// Checks the outputs in the memory a last time. The memory stays until all operations in it have
// ended.
void SimRank::let_go_of(std::shared_ptr<Region> memory) {
  const auto lies_in = [&](const std::byte* at) {
    return at >= memory->data() && at < memory->data() + memory->bytes();
  };
  bool is_needed = false;
  for (auto& use : uses_) {
    is_needed |= !use.is_over && (lies_in(use.in) || lies_in(use.out));
    if (!use.is_over || !lies_in(use.out)) continue;
    if (!std::equal(use.final_out.begin(), use.final_out.end(), use.out))
      record_of(use).touched_after_end = true;
    use.out = nullptr;
  }
  if (is_needed) kept_memory_.push_back(std::move(memory));
}

}  // namespace tutti::simulation
