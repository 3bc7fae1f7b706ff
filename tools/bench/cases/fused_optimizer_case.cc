// Compares Adam that is fused with the reduction and divided over the ranks with an allreduce and a
// whole step.
#include <fmt/format.h>

#include <cmath>

#include "tools/bench/cases/cases.h"
#include "tools/bench/cases/gradient_step.h"
#include "tools/bench/report/figures.h"
#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/adapters/nn/sharded.h"
#include "tutti/base/text.h"

namespace tutti::bench {

namespace {

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

// Fills a gradient with the same values on every rank, so that repeated averaging leaves it
// unchanged.
void fill_gradient(std::span<float> gradient) {
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 7) - 3;
}

}  // namespace

bool run_fused_optimizer(Session& session) {
  const auto& settings = session.settings();
  std::vector<GradientArena::Array> arrays;
  int64_t bytes = 0;
  for (const auto& gradient : load_gradient_set(settings.set, settings.elements)) {
    arrays.push_back({gradient.name, {gradient.count}});
    bytes += gradient.count * int64_t{sizeof(float)};
  }
  const auto communicator = session.fresh();
  SeparateAdam separate(*communicator, arrays);
  const auto other = session.fresh();
  nn::ShardedAdam sharded(*other, arrays, {.learning_rate = 0.001});
  for (const auto& array : arrays) {
    fill_gradient(separate.gradient(array.name));
    fill_gradient(sharded.gradient(array.name));
  }
  const auto sharded_step = [&] {
    for (size_t i = arrays.size(); i-- > 0;) sharded.ready(arrays[i].name);
    sharded.step();
  };
  const Subject whole{nullptr, [&](int64_t steps) {
                        for (; steps > 0; --steps) separate.step();
                      }};
  const Subject fused{nullptr, [&](int64_t steps) {
                        for (; steps > 0; --steps) sharded_step();
                      }};

  // Both optimizers run the same number of steps from the same start, so the parameters must be
  // equal.
  constexpr int64_t kCheckedSteps = 16;
  whole.run(kCheckedSteps);
  fused.run(kCheckedSteps);
  auto record = session.record(Way::arena);
  int64_t wrong = 0;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const auto value = sharded.value(arrays[i].name);
    for (size_t k = 0; k < value.size(); ++k) wrong += value[k] != separate.values(i)[k];
  }
  record.wrong = session.count(wrong);

  const int64_t iterations = session.find_iterations(whole);
  std::vector<double> wholes, fuseds, ratios;
  const int64_t preemptions = own_preemptions();
  for (int repetition = 0; repetition < settings.repetitions; ++repetition) {
    wholes.push_back(session.max(session.repeat(whole, 1, iterations).front()));
    fuseds.push_back(session.max(session.repeat(fused, 1, iterations).front()));
    ratios.push_back(fuseds.back() / wholes.back());
  }
  record.set = settings.set;
  record.op = to_string(ReduceOp::average);
  record.bytes = bytes;
  auto timing = summarize(fuseds, iterations);
  timing.preemptions = session.count(own_preemptions() - preemptions);
  session.set_timing(record, timing);
  record.extra["separate_us"] = median(wholes);
  record.extra["ratio"] = median(ratios);
  session.report().print(
      fmt::format("# tutti-bench fused_optimizer --set {}: {}, {}{}\n"
                  "#{:>13} {:>13} {:>13} {:>23} {:>9} {:>6}\n"
                  " {:>13.1f} {:>13.1f} {:>13.1f} {:>23.1f} {:>9.3f} {:>6}\n",
                  settings.set, format_count(session.size(), "rank"), record.transport,
                  settings.pin ? ", pinned" : "", "fused (us)", "min", "max",
                  "allreduce + step (us)", "ratio", "#wrong", record.time_us, record.min_us,
                  record.max_us, median(wholes), median(ratios), record.wrong));
  session.report().add(record);
  return record.wrong == 0;
}

}  // namespace tutti::bench
