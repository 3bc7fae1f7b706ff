#include "tutti/core/agreement/coordinator.h"

#include <algorithm>
#include <utility>

#include "tutti/core/agreement/checks.h"

namespace tutti {

namespace {

// Returns true for a send or receive. It never belongs to a plan, even if the plan uses the same
// name.
template <class Message>
bool is_between_two(const Message& message) {
  return is_pair(message.signature.kind);
}

}  // namespace

Coordinator::Coordinator(const Options& options, int size, Send send)
    : options_(options),
      size_(size),
      send_(std::move(send)),
      negotiator_(size),
      cache_(options.cache_capacity),
      learner_(options.replay_after),
      allreduce_learner_(options.replay_after + 2),
      pair_learner_(options.replay_after),
      progress_(static_cast<size_t>(size), Progress::after),
      asked_again_(static_cast<size_t>(size)) {}

void Coordinator::on_requests(int rank, WireReader reader, Clock::time_point now) {
  auto& asked_again = asked_again_[static_cast<size_t>(rank)];
  if (reader.at_end() && asked_again.count > 0 && --asked_again.count == 0 &&
      std::exchange(asked_again.joins, false)) {
    Request join;
    join.join = true;
    negotiator_.add(rank, std::move(join), now);
  }
  std::vector<int64_t> forgotten;
  while (!reader.at_end()) {
    Request request;
    int64_t unknown = -1;
    if (!decode_request(reader, cache_, request, unknown)) {
      forgotten.push_back(unknown);
      continue;
    }
    if (!request.join) check_request(request, rank, size_);
    // A rank that has not received the plan yet still requests the plan's tensors. Such requests
    // are ignored here: when that rank receives the plan, it moves them into the plan itself. A
    // join is ignored too: the rank requests it again after it has left the plan.
    if (plan_ && progress_[static_cast<size_t>(rank)] == Progress::before &&
        !is_between_two(request) && (request.join || plan_->index.contains(request.name)))
      continue;
    if (request.join && (asked_again.count > 0 || !forgotten.empty()))
      asked_again.joins = true;
    else
      negotiator_.add(rank, std::move(request), now);
  }
  if (forgotten.empty()) return;
  ++asked_again.count;
  auto message = begin_message(MessageType::resend);
  message.numbers(forgotten);
  send_(rank, message.bytes());
}

void Coordinator::on_left(int rank, const Error& error, uint64_t joins) {
  asked_again_[static_cast<size_t>(rank)] = {};
  negotiator_.leave(rank, error, joins);
}

bool Coordinator::may_lock() const {
  return !negotiator_.has_lost_a_rank() && !negotiator_.awaits_joins() &&
         std::ranges::none_of(asked_again_, [](const auto& one) { return one.joins; });
}

void Coordinator::on_plan_joined(int rank, WireReader reader) {
  if (plan_ && reader.get<uint32_t>() == plan_->id)
    progress_[static_cast<size_t>(rank)] = Progress::inside;
}

void Coordinator::on_plan_failed(WireReader reader) {
  const auto id = reader.get<uint32_t>();
  const bool reordered = reader.get<uint8_t>() != 0;
  std::vector<std::string> missing;
  for (auto left = reader.get<uint16_t>(); left > 0; --left) missing.push_back(reader.text());
  if (!plan_ || plan_->id != id || std::exchange(has_failed_, true)) return;
  for (auto* learner : {&learner_, &allreduce_learner_}) {
    if (reordered)
      learner->reordered();
    else
      learner->failed(missing);
  }
}

void Coordinator::on_plan_left(int rank, WireReader reader) {
  if (!plan_ || reader.get<uint32_t>() != plan_->id) return;
  progress_[static_cast<size_t>(rank)] = Progress::after;
  if (std::ranges::count(progress_, Progress::after) == size_) plan_.reset();
}

void Coordinator::answer() {
  auto responses = negotiator_.take_ready();
  if (responses.empty()) return;
  // All ranks get the same message, unless each rank needs its own rows; see for_rank().
  const bool is_one = std::ranges::none_of(responses, [](const Response& response) {
    return exchanges_parts(response.signature.kind) && !response.error;
  });
  std::vector<WireWriter> messages(is_one ? 1 : static_cast<size_t>(size_),
                                   begin_message(MessageType::answers));
  std::optional<std::vector<Plan::Tensor>> locked;
  const auto in_locked = [&](const std::string& name) {
    return std::any_of(locked->begin(), locked->end(),
                       [&](const Plan::Tensor& tensor) { return tensor.name == name; });
  };
  for (auto& response : responses) {
    // An earlier response in this list completed a step, which became a plan. Answers for the
    // plan's tensors that are already ready belong to the plan.
    if (locked && !response.all_joined && !is_between_two(response) && in_locked(response.name))
      continue;
    const bool regular = !response.error && !response.all_joined && response.joined.empty();
    if (regular && options_.replay && is_between_two(response))
      response.pair = pair_learner_.observe(response);
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      messages[rank].put(AnswerType::response);
      encode_response(messages[rank],
                      is_one ? response : for_rank(response, static_cast<int>(rank), size_),
                      cache_);
    }
    if (regular) cache_.remember(response.name, response.signature);
    if (!options_.replay || plan_ || locked) continue;
    if (regular) {
      locked = learn(response);
    } else {
      learner_.disturb();
      allreduce_learner_.disturb();
    }
    if (locked && (!may_lock() || count_pieces(*locked, options_.partition_bytes) > kMostPieces))
      locked.reset();
  }
  if (locked) lock(std::move(*locked), messages);
  for (int rank = 0; rank < size_; ++rank)
    send_(rank, messages[messages.size() == 1 ? 0 : static_cast<size_t>(rank)].bytes());
}

// Returns the tensors of a plan once a step has repeated often enough. If only the allreduces of a
// step repeat, the plan holds just the allreduces. This needs more repetitions, because a first
// step may contain operations that happen once, such as a broadcast.
std::optional<std::vector<Plan::Tensor>> Coordinator::learn(const Response& response) {
  if (!PlanLearner::can_replay(response.signature)) return {};
  auto all = learner_.observe(response);
  if (response.signature.kind != CollectiveKind::allreduce) return all;
  auto allreduces = allreduce_learner_.observe(response);
  auto& learned = all ? all : allreduces;
  if (learned) {
    learner_.disturb();
    allreduce_learner_.disturb();
  }
  return std::move(learned);
}

void Coordinator::lock(std::vector<Plan::Tensor> tensors, std::vector<WireWriter>& messages) {
  plan_ = Plan::build(next_plan_++, std::move(tensors), options_.fusion_bytes,
                      options_.partition_bytes);
  for (const auto& tensor : plan_->tensors) negotiator_.forget(tensor.name);
  has_failed_ = false;
  std::fill(progress_.begin(), progress_.end(), Progress::before);
  if (plan_->differs_by_rank() && messages.size() == 1)
    messages.resize(static_cast<size_t>(size_), WireWriter(messages[0]));
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    messages[rank].put(AnswerType::plan);
    if (plan_->differs_by_rank())
      plan_->told_to(static_cast<int>(rank), size_).encode(messages[rank]);
    else
      plan_->encode(messages[rank]);
  }
}

}  // namespace tutti
