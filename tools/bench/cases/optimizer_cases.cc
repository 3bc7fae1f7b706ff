// Compares Adam whose work is divided over the ranks with an allreduce and a whole step on every
// rank. The divided step is fused with the reduction (fused_optimizer), or lies between a
// reduce_scatter and an allgather (sharded, ZeRO 1).
#include <fmt/format.h>

#include "tools/bench/cases/cases.h"
#include "tools/bench/cases/gradient_step.h"
#include "tools/bench/report/figures.h"
#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/adapters/nn/sharded.h"
#include "tutti/base/text.h"

namespace tutti::bench {

namespace {

// Fills a gradient with the same values on every rank, so that repeated averaging leaves it
// unchanged.
void fill_gradient(std::span<float> gradient) {
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 7) - 3;
}

int64_t count_different(std::span<const float> values, std::span<const float> expected) {
  int64_t different = 0;
  for (size_t i = 0; i < values.size(); ++i) different += values[i] != expected[i];
  return different;
}

// Two optimizers that begin with the same parameters and get the same gradients.
struct Contest {
  std::string_view title;       // heads the column of the divided step's time
  std::function<void()> whole;  // takes a step
  std::function<void()> divided;
  int checked_steps;
  std::function<int64_t()> count_wrong;  // the number of parameters that differ
};

// Measures both by turns. `record` has the way and the bytes.
bool compare(Session& session, Record record, const Contest& contest) {
  const auto subject_of = [](const std::function<void()>& step) {
    return Subject{nullptr, [&step](int64_t steps) {
                     for (; steps > 0; --steps) step();
                   }};
  };
  const auto whole = subject_of(contest.whole), divided = subject_of(contest.divided);
  // After the same number of steps from the same start the parameters must be equal.
  whole.run(contest.checked_steps);
  divided.run(contest.checked_steps);
  record.wrong = session.count(contest.count_wrong());

  const auto& settings = session.settings();
  const int64_t iterations = session.find_iterations(whole);
  std::vector<double> whole_us, divided_us, ratios;
  const int64_t preemptions = own_preemptions();
  for (int repetition = 0; repetition < settings.repetitions; ++repetition) {
    whole_us.push_back(session.max(session.repeat(whole, 1, iterations).front()));
    divided_us.push_back(session.max(session.repeat(divided, 1, iterations).front()));
    ratios.push_back(divided_us.back() / whole_us.back());
  }
  record.set = settings.set;
  record.op = to_string(ReduceOp::average);
  auto timing = summarize(divided_us, iterations);
  timing.preemptions = session.count(own_preemptions() - preemptions);
  session.set_timing(record, timing);
  record.extra["separate_us"] = median(whole_us);
  record.extra["ratio"] = median(ratios);
  session.report().print(
      fmt::format("# tutti-bench {} --set {}: {}, {}{}\n"
                  "#{:>13} {:>13} {:>13} {:>23} {:>9} {:>6}\n"
                  " {:>13.1f} {:>13.1f} {:>13.1f} {:>23.1f} {:>9.3f} {:>6}\n",
                  settings.case_name, settings.set, format_count(session.size(), "rank"),
                  record.transport, settings.pin ? ", pinned" : "", contest.title, "min", "max",
                  "allreduce + step (us)", "ratio", "#wrong", record.time_us, record.min_us,
                  record.max_us, median(whole_us), median(ratios), record.wrong));
  session.report().add(record);
  return record.wrong == 0;
}

// Does a whole Adam step after the averages have arrived.
class SeparateAdam {
 public:
  SeparateAdam(Communicator& communicator, const std::vector<GradientArena::Array>& arrays)
      : arena_(communicator, arrays), arrays_(arrays) {
    for (const auto& array : arrays)
      for (auto* part : {&values_, &first_, &second_})
        part->emplace_back(static_cast<size_t>(array.shape.count()), 0.0f);
  }
  std::span<float> gradient(const std::string& name) {
    const auto view = arena_[name];
    return {view.as<float>(), static_cast<size_t>(view.count())};
  }
  void step() {
    for (size_t i = arrays_.size(); i-- > 0;) arena_.ready(arrays_[i].name);
    arena_.wait();
    ++settings_.step;
    for (size_t i = 0; i < arrays_.size(); ++i)
      adam_step(settings_, values_[i], gradient(arrays_[i].name), first_[i], second_[i]);
  }
  const std::vector<float>& values(size_t i) const { return values_[i]; }

 private:
  GradientArena arena_;
  const std::vector<GradientArena::Array> arrays_;
  AdamSettings settings_{.learning_rate = 0.001, .step = 0};
  std::vector<std::vector<float>> values_, first_, second_;
};

std::vector<nn::Parameter> parameters_of(const std::vector<Gradient>& gradients) {
  std::vector<nn::Parameter> all;
  for (const auto& gradient : gradients) {
    const Shape shape{gradient.count};
    all.push_back({gradient.name, Tensor(shape, DataType::f32), Tensor(shape, DataType::f32),
                   std::make_shared<nn::GradientReady>()});
    fill_gradient(all.back().gradient.span<float>());
  }
  return all;
}

}  // namespace

bool run_fused_optimizer(Session& session) {
  const auto& settings = session.settings();
  std::vector<GradientArena::Array> arrays;
  auto record = session.record(Way::arena);
  for (const auto& gradient : load_gradient_set(settings.set, settings.elements)) {
    arrays.push_back({gradient.name, {gradient.count}});
    record.bytes += gradient.count * int64_t{sizeof(float)};
  }
  const auto communicator = session.fresh();
  SeparateAdam separate(*communicator, arrays);
  const auto other = session.fresh();
  nn::ShardedAdam sharded(*other, arrays, {.learning_rate = 0.001});
  for (const auto& array : arrays) {
    fill_gradient(separate.gradient(array.name));
    fill_gradient(sharded.gradient(array.name));
  }
  const auto fused_step = [&] {
    for (size_t i = arrays.size(); i-- > 0;) sharded.ready(arrays[i].name);
    sharded.step();
  };
  const auto count_wrong = [&] {
    int64_t wrong = 0;
    for (size_t i = 0; i < arrays.size(); ++i)
      wrong += count_different(sharded.value(arrays[i].name), separate.values(i));
    return wrong;
  };
  return compare(session, record,
                 {"fused (us)", [&] { separate.step(); }, fused_step, 16, count_wrong});
}

bool run_sharded(Session& session) {
  const auto& settings = session.settings();
  const auto gradients = load_gradient_set(settings.set, settings.elements);
  const nn::AdamOptions options{.learning_rate = 0.001};
  const auto communicator = session.fresh();
  const auto wholes = parameters_of(gradients);
  nn::Adam adam(wholes, options);
  const auto other = session.fresh();
  const auto parts = parameters_of(gradients);
  nn::ShardedOptimizer<nn::Adam> zero(*other, parts, options, {.stage = 1});
  auto record = session.record(Way::named);
  for (const auto& part : parts) record.bytes += part.value.bytes();

  std::vector<Work> works(wholes.size());
  const auto whole_step = [&] {
    for (size_t i = wholes.size(); i-- > 0;)
      works[i] = communicator->allreduce(wholes[i].name, wholes[i].gradient.view());
    for (auto& work : works) work.wait();
    adam.step();
  };
  const auto sharded_step = [&] {
    for (size_t i = parts.size(); i-- > 0;) zero.gradient_ready(parts[i].name);
    zero.step();
  };
  const auto count_wrong = [&] {
    int64_t wrong = 0;
    for (size_t i = 0; i < parts.size(); ++i)
      wrong += count_different(parts[i].value.span<float>(), wholes[i].value.span<float>());
    return wrong;
  };
  return compare(session, record, {"ZeRO-1 (us)", whole_step, sharded_step, 8, count_wrong});
}

}  // namespace tutti::bench
