// Compares Adam in parts (ZeRO 1) with an allreduce and a whole step. The parts are a
// reduce_scatter, a step on the shard, and an allgather.
#include <fmt/format.h>

#include "tools/bench/cases/cases.h"
#include "tools/bench/cases/gradient_step.h"
#include "tools/bench/report/figures.h"
#include "tutti/adapters/nn/sharded.h"
#include "tutti/base/text.h"

namespace tutti::bench {

namespace {

// Returns parameters whose gradients are equal on all ranks, so that repeated averaging leaves them
// unchanged.
std::vector<nn::Parameter> parameters_of(const std::vector<Gradient>& gradients) {
  std::vector<nn::Parameter> all;
  for (const auto& gradient : gradients) {
    const Shape shape{gradient.count};
    all.push_back({gradient.name, Tensor(shape, DataType::f32), Tensor(shape, DataType::f32),
                   std::make_shared<nn::GradientReady>()});
    const auto values = all.back().gradient.span<float>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
  }
  return all;
}

}  // namespace

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

  std::vector<Work> works(wholes.size());
  const Subject whole{nullptr, [&](int64_t steps) {
                        for (; steps > 0; --steps) {
                          for (size_t i = wholes.size(); i-- > 0;)
                            works[i] =
                                communicator->allreduce(wholes[i].name, wholes[i].gradient.view());
                          for (auto& work : works) work.wait();
                          adam.step();
                        }
                      }};
  const Subject sharded{nullptr, [&](int64_t steps) {
                          for (; steps > 0; --steps) {
                            for (size_t i = parts.size(); i-- > 0;)
                              zero.gradient_ready(parts[i].name);
                            zero.step();
                          }
                        }};

  // Both optimizers run the same number of steps from the same start, so the parameters must be
  // equal.
  constexpr int64_t kCheckedSteps = 8;
  whole.run(kCheckedSteps);
  sharded.run(kCheckedSteps);
  auto record = session.record(Way::named);
  int64_t wrong = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto got = parts[i].value.span<float>(), expected = wholes[i].value.span<float>();
    for (size_t k = 0; k < got.size(); ++k) wrong += got[k] != expected[k];
    record.bytes += parts[i].value.bytes();
  }
  record.wrong = session.count(wrong);

  const int64_t iterations = session.find_iterations(whole);
  std::vector<double> whole_us, sharded_us, ratios;
  const int64_t preemptions = own_preemptions();
  for (int repetition = 0; repetition < settings.repetitions; ++repetition) {
    whole_us.push_back(session.max(session.repeat(whole, 1, iterations).front()));
    sharded_us.push_back(session.max(session.repeat(sharded, 1, iterations).front()));
    ratios.push_back(sharded_us.back() / whole_us.back());
  }
  record.set = settings.set;
  record.op = to_string(ReduceOp::average);
  auto timing = summarize(sharded_us, iterations);
  timing.preemptions = session.count(own_preemptions() - preemptions);
  session.set_timing(record, timing);
  record.extra["separate_us"] = median(whole_us);
  record.extra["ratio"] = median(ratios);
  session.report().print(
      fmt::format("# tutti-bench sharded --set {}: {}, {}{}\n"
                  "#{:>13} {:>13} {:>13} {:>23} {:>9} {:>6}\n"
                  " {:>13.1f} {:>13.1f} {:>13.1f} {:>23.1f} {:>9.3f} {:>6}\n",
                  settings.set, format_count(session.size(), "rank"), record.transport,
                  settings.pin ? ", pinned" : "", "ZeRO-1 (us)", "min", "max",
                  "allreduce + step (us)", "ratio", "#wrong", record.time_us, record.min_us,
                  record.max_us, median(whole_us), median(ratios), record.wrong));
  session.report().add(record);
  return record.wrong == 0;
}

}  // namespace tutti::bench
