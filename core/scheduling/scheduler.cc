#include "tutti/core/scheduling/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/check.h"
#include "tutti/base/process/memory_check.h"
#include "tutti/core/agreement/checks.h"
#include "tutti/core/agreement/coordinator.h"

namespace tutti {

std::string entry_key(const Request& request) {
  if (!is_pair(request.signature.kind)) return request.name;
  return pair_entry_key(request.name, request.signature.root);
}

Scheduler::Scheduler(const Options& options, Backend& backend, const Peers& peers, int rank,
                     int size, Statistics& statistics, Timeline& timeline, Hooks hooks)
    : options_(options),
      backend_(backend),
      peers_(peers),
      rank_(rank),
      size_(size),
      statistics_(statistics),
      timeline_(timeline),
      hooks_(std::move(hooks)),
      capabilities_(backend.capabilities()),
      pool_(backend),
      cache_(options.cache_capacity),
      plan_(rank, size) {}

// --- requests -----------------------------------------------------------------------------------

void Scheduler::submit(Entry* entry, Clock::time_point now) {
  last_submitted_ = entry->request.name;
  if (entry->request.signature.kind == CollectiveKind::allreduce) ++statistics_.tensors;
  if (is_pair(entry->request.signature.kind) ? launch_in_pair(entry, now) : plan_.offer(entry))
    return;
  request(entry);
}

void Scheduler::join(Entry* entry, Clock::time_point now) {
  join_.entry = entry;
  join_.is_asked = false;
  ++join_.count;
  flush();
  // The peers may follow the plan and wait for tensors that this rank will not submit, so this rank
  // vetoes. Its tensors that are already in the plan still count. So rank 0 must receive requests
  // for them before the join.
  if (plan_.state() == PlanFollower::State::following)
    veto(now);
  else
    ask_to_join();
  // The peers must also learn that this rank does not send or receive any more.
  leave_pairs(pairs_.in_order());
}

void Scheduler::ask_to_join() {
  if (join_.entry == nullptr || join_.is_asked) return;
  // This rank leaves its plan before it joins. Once any rank has left the communicator, this rank
  // cannot leave the plan any more, so it sends the join anyway.
  if (plan_.has_plan() && peers_.first() == nullptr) return;
  const auto is_of_pair = [](const auto& run) { return run->is_in_pair(); };
  if (std::ranges::any_of(runs_, is_of_pair) || !behind_pairs_.empty()) return;
  send_join();
}

void Scheduler::send_join() {
  join_.is_asked = true;
  auto message = begin_message(MessageType::requests);
  Request request;
  request.join = true;
  encode_request(message, request, cache_);
  hooks_.send(0, message.bytes());
}

void Scheduler::request(Entry* entry) {
  outstanding_.emplace(entry_key(entry->request), entry);
  unsent_.push_back(entry);
}

void Scheduler::flush() {
  if (unsent_.empty()) return;
  auto message = begin_message(MessageType::requests);
  for (auto* entry : unsent_) {
    entry->sent_id = cache_.find(entry->request.name, entry->request.signature);
    encode_request(message, entry->request, cache_);
  }
  unsent_.clear();
  hooks_.send(0, message.bytes());
  options_.observe("negotiation");
}

// Sends again, in full, those outstanding requests whose ids rank 0 has forgotten. An empty message
// marks the end of these requests.
void Scheduler::on_resend(WireReader reader) {
  const auto forgotten = reader.numbers();
  const NameCache empty_cache(0);
  auto message = begin_message(MessageType::requests);
  bool has_any = false;
  for (Entry* entry : outstanding_in_order())
    if (std::find(forgotten.begin(), forgotten.end(), entry->sent_id) != forgotten.end()) {
      entry->sent_id = -1;
      encode_request(message, entry->request, empty_cache);
      has_any = true;
    }
  if (has_any) hooks_.send(0, message.bytes());
  hooks_.send(0, begin_message(MessageType::requests).bytes());
}

Entry* Scheduler::take_outstanding(const std::string& key) {
  const auto found = outstanding_.find(key);
  if (found == outstanding_.end()) return nullptr;
  Entry* entry = found->second;
  outstanding_.erase(found);
  return entry;
}

std::vector<Entry*> Scheduler::outstanding_in_order() const {
  std::vector<Entry*> entries;
  for (const auto& [key, entry] : outstanding_) entries.push_back(entry);
  std::ranges::sort(entries, {}, &Entry::order);
  return entries;
}

// --- answers ------------------------------------------------------------------------------------

void Scheduler::on_answers(WireReader reader, Clock::time_point now) {
  std::vector<Response> fusable;
  while (!reader.at_end()) {
    if (reader.enumeration<AnswerType>(2) == AnswerType::plan) {
      launch_fused(fusable);
      begin_plan(Plan::decode(reader, options_.fusion_bytes, options_.partition_bytes), now);
      continue;
    }
    auto response = decode_response(reader, cache_);
    check_response(response, size_);
    if (!response.error && !response.all_joined && response.joined.empty())
      cache_.remember(response.name, response.signature);
    on_response(response, fusable);
  }
  launch_fused(fusable);
}

void Scheduler::on_response(const Response& response, std::vector<Response>& fusable) {
  if (response.all_joined) {
    Entry* entry = std::exchange(join_.entry, nullptr);
    if (entry == nullptr) return;
    entry->made = Tensor(Shape{}, DataType::i64);
    *entry->made.as<int64_t>() = response.rows.at(0);
    entry->work->set_output(0, entry->made);
    finish(entry, nullptr);
    return;
  }
  if (traits(response.signature.kind).may_fuse && !response.error) {
    fusable.push_back(response);
    return;
  }
  // All ranks launch in the order of the answers. The answers in `fusable` come before this one.
  launch_fused(fusable);
  const auto kind = response.signature.kind;
  std::string key = response.name;
  if (is_pair(kind)) {
    pairs_.hear_of(response.pair);
    key.clear();
    const int64_t from = response.rows.at(0), to = response.rows.at(1),
                  root = response.signature.root;
    if (from == rank_) key = pair_entry_key(response.name, from == to ? root : to);
    if (from != rank_ && to == rank_)
      key = pair_entry_key(response.name, root == kFromAnyRank ? root : from);
  }
  Entry* entry = take_outstanding(key);
  if (response.error) {
    // A doomed operation fails later, when no Run uses its memory any more.
    if (entry != nullptr && !is_doomed(entry)) finish(entry, &*response.error);
    return;
  }
  if (entry != nullptr) {
    check_answer(entry->request, response, rank_, size_);
    if (response.pair >= 0) prepare_pair(response, *entry);
  }
  // Every rank takes a tag for this send. Only the sender and the receiver have something to run.
  const uint64_t tag = next_tag_++;
  if (entry != nullptr)
    waiting_.push_back(Run::moved(tag, pool_, {&response, 1}, {}, {entry}, rank_, size_));
}

// Fuses operations that were answered together. The same answers produce the same buckets on all
// ranks.
void Scheduler::launch_fused(std::vector<Response>& fusable) {
  if (fusable.empty()) return;
  std::vector<Placeable> places;
  std::vector<Entry*> entries;
  bool has_allreduce = false;
  for (size_t i = 0; i < fusable.size(); ++i) {
    const auto& response = fusable[i];
    const auto kind = response.signature.kind;
    places.push_back({static_cast<int64_t>(i), &response.signature, response.joined,
                      gathered(response.signature, response.rows)});
    Entry* entry = take_outstanding(response.name);
    entries.push_back(entry);
    if (entry != nullptr) {
      check_answer(entry->request, response, rank_, size_);
      entry->left = response.signature.shape.count() - response.signature.begin;
    }
    has_allreduce |= kind == CollectiveKind::allreduce;
    // A rank that has joined takes part in allreduces without data.
    need_of_message(entry != nullptr || kind == CollectiveKind::allreduce,
                    "it answers a request that this rank did not make");
  }
  if (has_allreduce) plan_.answered_beside();
  const auto buckets = plan_buckets(places, options_.fusion_bytes, options_.partition_bytes);
  for (const auto& bucket : buckets) {
    std::vector<Entry*> members;
    for (const auto& slice : bucket.slices)
      if (auto* entry = entries[static_cast<size_t>(slice.index)]) members.push_back(entry);
    TUTTI_CHECK(members.empty() || members.size() == bucket.slices.size());
    const uint64_t tag = next_tag_++;
    if (bucket.key.kind == CollectiveKind::allreduce) {
      const int contributors = size_ - static_cast<int>(bucket.key.joined.size());
      waiting_.push_back(
          Run::bucket(tag, pool_, bucket, std::move(members), contributors, device_of(bucket.key)));
      ++statistics_.buckets;
      continue;
    }
    std::vector<Response> answers;
    for (const auto& slice : bucket.slices)
      answers.push_back(fusable[static_cast<size_t>(slice.index)]);
    statistics_.buckets += answers.size() > 1 ? 1 : 0;
    waiting_.push_back(Run::moved(tag, pool_, answers, {}, std::move(members), rank_, size_));
  }
  fusable.clear();
}

Device Scheduler::device_of(const BucketKey& key) const {
  for (const auto& [device, kinds, dtypes, ops] : capabilities_.devices)
    if (device.kind == key.placement &&
        capabilities_.serves_on(device, CollectiveKind::allreduce, key.wire, key.op))
      return device;
  return {};
}

// --- running ------------------------------------------------------------------------------------

// Returns whether the elements of the entries that these slices need are in host memory. (An
// operation without slices is submitted only when its whole tensor is in host memory.)
bool Scheduler::arrived(std::span<Entry* const> entries, std::span<const BucketSlice> slices) {
  for (size_t i = 0; i < std::min(entries.size(), slices.size()); ++i)
    if (entries[i]->staged != nullptr &&
        !entries[i]->staged->arrived(slices[i].begin + slices[i].count))
      return false;
  return true;
}

bool Scheduler::launch_negotiated(Clock::time_point now) {
  bool moved = false;
  while (!waiting_.empty() && running_[0] < kMostRunning &&
         arrived(waiting_.front()->entries(), waiting_.front()->slices())) {
    auto run = std::move(waiting_.front());
    waiting_.pop_front();
    start(std::move(run), 0, now);
    moved = true;
  }
  return moved;
}

// Throws if the program has freed a tensor's memory that is about to be used.
void Scheduler::check_memory(const Entry& entry) const {
  for (const auto* view : {&entry.input, &entry.output}) {
    if (view->device() != Device{} || view->data() == nullptr) continue;
    if (is_still_there(view->data(), static_cast<size_t>(view->bytes()))) continue;
    const auto& name = entry.request.name;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\": rank {} has freed its memory ({} bytes) before the Work was "
                            "done; keep a tensor until wait() has returned",
                            name, rank_, view->bytes()))
        .with_rank(rank_)
        .with_tensor(name);
  }
}

void Scheduler::start(std::unique_ptr<Run> run, uint32_t verdict, Clock::time_point now) {
  if (!run->is_in_pair()) ++running_[run->is_planned() ? 1 : 0];
  if (options_.check_memory)
    for (const Entry* entry : run->entries()) check_memory(*entry);
  options_.observe("pack");
  run->set_spans(run->is_on_device() && timeline_.on() ? timeline_.device_spans(describe(*run))
                                                       : nullptr);
  run->start(backend_, verdict, run->is_planned() ? kReplayedQueue : kNegotiatedQueue,
             timeline_.exact(now));
  if (run->origin().kind != Origin::Kind::negotiated && verdict == 0) {
    statistics_.predicted_messages += run->traffic().messages;
    statistics_.predicted_bytes += run->traffic().bytes;
  }
  runs_.push_back(std::move(run));
  options_.observe("transfer");
}

bool Scheduler::advance(Clock::time_point now) {
  next_deadline_ = Clock::time_point::max();
  const bool has_any_left = peers_.first() != nullptr;
  if (has_any_left && break_what_cannot_be_cancelled(now)) return true;
  bool moved = has_any_left && end_what_is_doomed();
  moved |= follow_plan(now);
  moved |= launch_negotiated(now);
  for (size_t i = 0; i < runs_.size();) {
    auto& run = *runs_[i];
    const auto state = run.operation()->advance();
    if (state == OperationState::pending) {
      if (run.tell_on_its_way()) hooks_.on_its_way();
      ++i;
      continue;
    }
    if (state == OperationState::failed && is_unexpected(run)) {
      if (awaits_cause(run, now)) {
        ++i;
        continue;
      }
      const auto* why = run.operation()->failure();
      // The hook fails all pending entries, also those of this Run.
      hooks_.broken(fmt::format("{} failed in flight{}{}", describe(run), why ? ": " : "",
                                why ? why->what() : ""));
      return true;
    }
    moved = true;
    auto over = std::move(runs_[i]);
    runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(i));
    if (over->is_in_pair() && finish_in_pair(over, state, now)) continue;
    if (!over->is_in_pair()) --running_[over->is_planned() ? 1 : 0];
    const auto was = over->state();
    over->end();
    if (was == RunState::cancelled) continue;
    if (state == OperationState::done) {
      const bool repeats = over->is_planned() && over->can_repeat();
      finish_run(*over, now);
      if (repeats && plan_.has_plan() && plan_.state() != PlanFollower::State::collapsed)
        idle_runs_[over->origin().number % idle_runs_.size()] = std::move(over);
      continue;
    }
    if (was == RunState::doomed) {
      doom(over->entries(), over->doomed_by());
      continue;
    }
    if (state == OperationState::vetoed) collapse(over->origin().number, now);
  }
  if (plan_.state() == PlanFollower::State::collapsed && running_[1] == 0) {
    renegotiate();
    moved = true;
  }
  if (!behind_pairs_.empty() || (join_.entry != nullptr && !join_.is_asked)) ask_behind_pairs();
  return moved;
}

// Progress is possible although nothing has arrived: an operation that ended in the last advance()
// may have made room for the next one, or a cancelled operation may have ended.
bool Scheduler::can_go_on() {
  if (!doomed_.empty() ||
      std::ranges::any_of(runs_, [](const auto& run) { return run->is_given_up(); }))
    return true;
  if (!waiting_.empty() && running_[0] < kMostRunning &&
      arrived(waiting_.front()->entries(), waiting_.front()->slices()))
    return true;
  return plan_.can_go_on(running_[1], [this] { return next_arrived(); });
}

void Scheduler::finish_run(Run& run, Clock::time_point now) {
  run.finish();
  if (timeline_.on())
    timeline_.span(
        run.origin().kind != Origin::Kind::negotiated ? "replayed buckets" : "negotiated",
        describe(run), run.started(), timeline_.exact(now),
        fmt::format("{} {} bytes by {} of {}", run.bytes(), to_string(run.collective().dtype),
                    backend_.algorithm(run.collective()), backend_.name_for(run.collective())));
  if (!run.slices().empty()) {
    finish_slices(run, now);
    return;
  }
  for (Entry* entry : run.entries()) {
    if (entry->made) {
      if (entry->divide_output_by != 1)
        scale(entry->made.dtype(), entry->made.data(), entry->made.count(),
              {1.0, entry->divide_output_by});
      entry->work->set_output(entry->output_index, entry->made);
    }
    plan_.release(entry);
    finish(entry, nullptr);
  }
}

void Scheduler::finish_slices(Run& run, Clock::time_point now) {
  over_.clear();
  for (size_t i = 0; i < run.entries().size(); ++i) {
    Entry* entry = run.entries()[i];
    const auto& slice = run.slices()[i];
    entry->final_end = std::max(entry->final_end, slice.begin + slice.count);
    entry->left -= slice.count;
    if (entry->staged) entry->staged->finished(slice.begin, slice.count);
    if (entry->left > 0) continue;
    if (timeline_.on())
      timeline_.span(entry->request.name, "allreduce", entry->submitted, timeline_.exact(now));
    plan_.release(entry);
    over_.push_back(entry);
  }
  if (!over_.empty()) hooks_.finish(over_, nullptr);
}

void Scheduler::drop() {
  runs_.clear();
  waiting_.clear();
  plan_.drop();
  idle_runs_.clear();
  outstanding_.clear();
  unsent_.clear();
  join_.entry = nullptr;
  doomed_.clear();
  running_[0] = running_[1] = 0;
  pairs_.clear();
  behind_pairs_.clear();
}

RankStatus Scheduler::status() const {
  RankStatus status;
  status.last_submitted = last_submitted_;
  if (plan_.has_plan()) {
    status.plan = plan_.plan().id;
    status.next_sequence = plan_.replay().next_sequence();
  }
  status.next_tag = waiting_.empty() ? next_tag_ : waiting_.front()->tag();
  status.outstanding = outstanding_.size() + runs_.size();
  status.joined =
      join_.entry != nullptr && join_.entry->work->waiters.load(std::memory_order_acquire) > 0;
  return status;
}

std::string Scheduler::first_pending() const {
  if (!waiting_.empty() && !waiting_.front()->entries().empty())
    return waiting_.front()->entries().front()->request.name;
  if (plan_.holds_waiting())
    if (const auto* entry = plan_.replay().find_waiting([](const Entry&) { return true; }))
      return entry->request.name;
  if (!outstanding_.empty()) return outstanding_in_order().front()->request.name;
  return join_.entry == nullptr ? std::string() : join_.entry->work->name();
}

bool Scheduler::is_awaited(std::string_view name) const {
  const auto is_it = [&](const Entry* entry) {
    return entry->request.name == name && entry->work->waiters.load(std::memory_order_acquire) > 0;
  };
  const auto holds_it = [&](const std::unique_ptr<Run>& run) {
    return std::ranges::any_of(run->entries(), is_it);
  };
  return std::ranges::any_of(outstanding_,
                             [&](const auto& asked) { return is_it(asked.second); }) ||
         std::ranges::any_of(waiting_, holds_it) || std::ranges::any_of(runs_, holds_it) ||
         (plan_.holds_waiting() &&
          plan_.replay().find_waiting([&](const Entry& entry) { return is_it(&entry); }));
}

std::string Scheduler::describe(const Run& run) {
  if (run.slices().empty()) {
    const auto kind = to_string(run.collective().kind);
    if (run.entries().empty()) return fmt::format("{} (of other ranks)", kind);
    const auto& name = run.entries().front()->request.name;
    return run.entries().size() == 1
               ? fmt::format("{} \"{}\"", kind, name)
               : fmt::format("{} \"{}\" and {} more", kind, name, run.entries().size() - 1);
  }
  if (run.entries().empty()) return fmt::format("bucket {} (of other ranks)", run.tag());
  const auto more = run.entries().size() - 1;
  const auto& first = run.entries().front()->request.name;
  const uint64_t number = run.is_planned() ? run.origin().number : run.tag();
  return more == 0 ? fmt::format("bucket {} (\"{}\")", number, first)
                   : fmt::format("bucket {} (\"{}\" and {} more)", number, first, more);
}

}  // namespace tutti
