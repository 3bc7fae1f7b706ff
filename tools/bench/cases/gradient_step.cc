#include "tools/bench/cases/gradient_step.h"

namespace tutti::bench {

namespace {

// Each gradient begins at a different phase of the pattern, so swapped gradients are noticed.
int64_t phase_of(size_t i) { return static_cast<int64_t>(i) * 37; }

Pattern input_pattern(const Communicator& communicator) {
  const ExactData data(DataType::f32, ReduceOp::average, communicator.size());
  return Pattern(DataType::f32, [&](int64_t i) { return data.input(communicator.rank(), i); });
}

Pattern mean_pattern(const Communicator& communicator) {
  const ExactData data(DataType::f32, ReduceOp::average, communicator.size());
  return Pattern(DataType::f32, [&](int64_t i) { return data.reduced(i); });
}

}  // namespace

GradientStep::GradientStep(Communicator& communicator, const std::vector<Gradient>& gradients,
                           Way way)
    : communicator_(communicator),
      way_(way),
      input_(input_pattern(communicator)),
      mean_(mean_pattern(communicator)) {
  if (way == Way::arena) {
    std::vector<GradientArena::Array> arrays;
    for (const auto& [name, count] : gradients) arrays.push_back({name, {count}});
    arena_.emplace(communicator, std::move(arrays));
  }
  for (const auto& [name, count] : gradients) {
    if (!arena_) memory_.emplace_back(Shape{count}, DataType::f32);
    views_.push_back({name, arena_ ? (*arena_)[name] : memory_.back().view()});
    bytes_ += views_.back().tensor.bytes();
    if (way == Way::declared)
      handles_.push_back(communicator.declare(name, Shape{count}, DataType::f32));
  }
  works_.reserve(views_.size());
  refill();
}

void GradientStep::submit(size_t i) {
  ++submitted_;
  const auto& [name, tensor] = views_[i];
  switch (way_) {
    case Way::arena:
      return arena_->ready(name);
    case Way::declared:
      works_.push_back(communicator_.allreduce(handles_[i], tensor));
      return;
    case Way::grouped:
      if (submitted_ == views_.size())
        works_.push_back(communicator_.grouped_allreduce("gradients", views_));
      return;
    default:
      works_.push_back(communicator_.allreduce(name, tensor));
  }
}

void GradientStep::wait() {
  submitted_ = 0;
  if (arena_) return arena_->wait();
  for (auto& work : works_) work.wait();
  works_.clear();
}

void GradientStep::run() {
  for (size_t i = views_.size(); i-- > 0;) submit(i);
  wait();
}

void GradientStep::refill() {
  for (size_t i = 0; i < views_.size(); ++i)
    input_.fill(views_[i].tensor.data(), views_[i].tensor.count(), phase_of(i));
}

int64_t GradientStep::count_wrong() const {
  int64_t wrong = 0;
  for (size_t i = 0; i < views_.size(); ++i)
    wrong += mean_.count_wrong(views_[i].tensor.data(), views_[i].tensor.count(), phase_of(i));
  return wrong;
}

bool run_until_locked(Session& session, Communicator& communicator, GradientStep& step, int most) {
  for (int i = 0; i < most; ++i) {
    step.run();
    const auto statistics = communicator.statistics();
    // All ranks must replay, so the last rank to begin decides.
    const bool replays = statistics.replayed_buckets > 0;
    if (session.count(replays) == session.size()) return true;
  }
  return false;
}

int64_t check_step(Session& session, GradientStep& step) {
  step.refill();
  step.run();
  return session.count(step.count_wrong());
}

}  // namespace tutti::bench
