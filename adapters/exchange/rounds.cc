#include "tutti/adapters/exchange/rounds.h"

#include <fmt/format.h>

#include <cstring>

#include "tutti/adapters/exchange/outer_step.h"

namespace tutti {

namespace {

bool is_real(const TensorView& tensor) {
  return tensor.dtype() == DataType::f32 || tensor.dtype() == DataType::f64;
}

void check_value(const NamedTensor& value) {
  if (is_real(value.tensor) && value.tensor.device().kind == DeviceKind::cpu) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("exchange policy: parameter \"{}\" is {} on {}, expected f32 or f64 in "
                          "host memory; exchange gradients instead",
                          value.name, to_string(value.tensor.dtype()),
                          value.tensor.device().kind == DeviceKind::cpu ? "the host" : "a device"))
      .with_tensor(value.name);
}

void check_reduce(const ExchangePolicy& policy, const ReduceOptions& reduce) {
  const auto want = [](bool holds, const std::string& message) {
    if (!holds) throw Error(ErrorCode::invalid_argument, "exchange policy: " + message);
  };
  want(reduce.op == ReduceOp::average,
       fmt::format("what={} excludes op={}; use op=average",
                   policy.what == Exchanged::changes ? "changes" : "parameters",
                   to_string(reduce.op)));
  want(reduce.prescale == 1, "parameters and changes exclude predivide; leave it at 1");
  want(!reduce.wire || policy.what == Exchanged::changes,
       "what=parameters excludes wire, which would round the parameters themselves; exchange "
       "changes");
  want(!reduce.wire || policy.combination == Combination::mean,
       "combination=adasum excludes wire; leave one of them out");
}

void copy_values(const TensorView& from, const TensorView& to) {
  std::memcpy(to.data(), from.data(), static_cast<size_t>(to.bytes()));
}

}  // namespace

Rounds::Rounds(Communicator& comm, const ExchangePolicy& policy, const ReduceOptions& reduce,
               std::vector<NamedTensor> values, std::vector<NamedTensor> momenta)
    : comm_(comm),
      policy_(policy),
      reduce_(reduce),
      momenta_(std::move(momenta)),
      rates_(Shape{2}, DataType::f64),
      steps_(Shape{2}, DataType::i64) {
  check_reduce(policy, reduce);
  set_under_way(-1);
  const auto& outer = policy.outer;
  const bool has_momentum = outer.kind == OuterStep::Kind::slow_momentum ||
                            (outer.kind == OuterStep::Kind::sgd && outer.momentum != 0);
  for (const auto& value : values) {
    check_value(value);
    auto& part = parts_.emplace_back();
    part.name = value.name;
    part.value = value.tensor;
    const auto add = [&](const char* kind) {
      const Tensor tensor(value.tensor.shape(), value.tensor.dtype());
      state_.push_back({fmt::format("exchange.{}.{}", kind, value.name), tensor});
      return tensor;
    };
    if (policy.keeps_shared_parameters()) {
      part.shared = add("shared");
      copy_values(part.value, part.shared);
    }
    if (has_momentum) part.momentum = add("momentum");
    if (policy.early > 0)
      part.sent = add("sent");
    else if (policy.what == Exchanged::changes || outer.kind == OuterStep::Kind::elastic)
      part.sent = Tensor(value.tensor.shape(), value.tensor.dtype());
  }
  if (policy.early > 0) state_.push_back({"exchange.rates", rates_});
  state_.push_back({"exchange.steps", steps_});
  if (policy.combination == Combination::adasum) {
    std::vector<TensorView> sent;
    for (const auto& part : parts_) sent.push_back(part.sent);
    adasum_.emplace(comm, "exchange", std::move(sent));
  }
  deal_fragments();
}

Rounds::~Rounds() {
  try {
    arrive();
  } catch (const Error&) {
    // The step that would have used this result is never taken.
  }
}

void Rounds::deal_fragments() {
  const auto fragments = static_cast<size_t>(policy_.fragments);
  if (fragments > 1 && parts_.size() < fragments)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("exchange policy: fragments={}, but there are {} parameters; use at "
                            "most that many fragments",
                            fragments, parts_.size()));
  int64_t all = 0, seen = 0;
  for (const auto& part : parts_) all += part.value.count();
  fragment_begins_ = {0};
  for (size_t i = 0; i < parts_.size() && fragment_begins_.size() < fragments; ++i) {
    seen += parts_[i].value.count();
    const auto ended =
        fragment_begins_.size();  // number of fragments so far, the current one included
    const bool is_full =
        seen * static_cast<int64_t>(fragments) >= all * static_cast<int64_t>(ended);
    const bool others_need_the_rest = parts_.size() - (i + 1) == fragments - ended;
    if (is_full || others_need_the_rest) fragment_begins_.push_back(i + 1);
  }
  fragment_begins_.push_back(parts_.size());
}

void Rounds::after_step(double learning_rate) {
  const int64_t step = ++steps_.as<int64_t>()[0];
  const int64_t local = step - policy_.synchronous_steps;
  if (local <= 0) {
    if (local == 0 && policy_.keeps_shared_parameters())
      for (auto& part : parts_) copy_values(part.value, part.shared);
    return;
  }
  // Fragment f is due once every `every` steps, (f + 1) * `apart` steps after the begin of a round.
  const int apart = policy_.every / policy_.fragments;
  const auto due_at = [&](int64_t at) -> int {
    if (at % apart != 0) return -1;
    return static_cast<int>((at / apart + policy_.fragments - 1) % policy_.fragments);
  };
  const int starts = due_at(local + policy_.early);
  if (starts >= 0) start(starts, learning_rate);
  // consolidate() may have finished this fragment early.
  const int ends = due_at(local);
  if (ends >= 0 && ends == under_way()) finish(ends);
}

void Rounds::start(int fragment, double learning_rate) {
  set_under_way(fragment);
  std::vector<NamedTensor> leaving;
  for (size_t i = first_of(fragment); i < first_of(fragment + 1); ++i) {
    auto& part = parts_[i];
    if (policy_.what == Exchanged::changes)
      take_change(part.shared, part.value, part.sent);
    else if (part.sent)
      copy_values(part.value, part.sent);
    leaving.push_back({part.name, part.sent ? part.sent.view() : part.value});
  }
  if (adasum_)
    adasum_->combine();
  else
    send(fmt::format("exchange {}", fragment), leaving, reduce_);
  std::vector<NamedTensor> real;
  if (policy_.momenta == Momenta::averaged)
    for (const auto& momentum : momenta_)
      if (is_real(momentum.tensor)) real.push_back(momentum);
  send("exchange momenta", real);
  rates_.as<double>()[0] = learning_rate;
  rates_.as<double>()[1] = -learning_rate;
  if (policy_.outer.kind == OuterStep::Kind::slow_momentum)
    works_.push_back(comm_.allreduce("exchange rates", rates_.view(), ReduceOp::max));
}

// Sends the tensors as a group. The tensors of a group share buckets from the first round on, so a
// round always sends the same number of bytes.
void Rounds::send(const std::string& group, std::vector<NamedTensor>& tensors,
                  const ReduceOptions& reduce) {
  for (auto& tensor : tensors) tensor.name = fmt::format("{} {}", group, tensor.name);
  if (!tensors.empty()) works_.push_back(comm_.grouped_allreduce(group, tensors, reduce));
}

void Rounds::arrive() {
  if (under_way() < 0) return;
  try {
    wait();
  } catch (const Error&) {
    set_under_way(-1);  // the result of this fragment is lost
    throw;
  }
}

void Rounds::wait() {
  std::optional<Error> failed;
  for (auto& work : works_) {
    try {
      work.wait();
    } catch (const Error& error) {
      if (!failed) failed = error;
    }
  }
  works_.clear();
  if (failed) throw Error(*failed);
}

void Rounds::finish(int fragment) {
  arrive();
  set_under_way(-1);
  const double rate = agreed_rate();
  for (size_t i = first_of(fragment); i < first_of(fragment + 1); ++i) use(parts_[i], rate);
  if (policy_.momenta == Momenta::zeroed)
    for (auto& momentum : momenta_)
      std::memset(momentum.tensor.data(), 0, static_cast<size_t>(momentum.tensor.bytes()));
}

double Rounds::agreed_rate() const {
  const double highest = rates_.as<double>()[0], lowest = -rates_.as<double>()[1];
  if (highest != lowest)
    throw Error(
        ErrorCode::mismatch,
        fmt::format("SlowMo divides by the learning rate, which must be equal on all ranks: "
                    "at step {} the lowest is {} and the highest {}; set it from the step "
                    "alone",
                    steps(), lowest, highest))
        .with_rank(comm_.rank());
  return highest;
}

void Rounds::use(Part& part, double learning_rate) {
  if (policy_.outer.kind == OuterStep::Kind::elastic)
    pull_to_mean(policy_.outer.pull, part.value, part.sent);
  if (policy_.what == Exchanged::parameters) return;
  switch (policy_.outer.kind) {
    case OuterStep::Kind::sgd:
      outer_sgd(policy_.outer, part.shared, part.sent, part.momentum);
      break;
    case OuterStep::Kind::slow_momentum:
      slow_momentum(policy_.outer, learning_rate, part.shared, part.sent, part.momentum);
      break;
    default:
      apply_change(part.shared, part.sent);
  }
  take_shared(policy_.kept, part.value, part.shared);
}

void Rounds::consolidate() {
  if (steps() <= policy_.synchronous_steps) return;  // parameters are still equal
  if (under_way() >= 0) finish(under_way());
  std::vector<NamedTensor> own;
  for (const auto& part : parts_) own.push_back({part.name, part.value});
  send("exchange consolidated", own);
  wait();
  if (policy_.keeps_shared_parameters())
    for (auto& part : parts_) copy_values(part.value, part.shared);
}

}  // namespace tutti
