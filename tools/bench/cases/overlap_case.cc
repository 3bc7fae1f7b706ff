// Measures how much of the gradients' communication is not hidden by a backward pass.
#include <fmt/format.h>

#include <atomic>
#include <cmath>

#include "tools/bench/cases/cases.h"
#include "tools/bench/cases/gradient_step.h"
#include "tools/bench/report/figures.h"
#include "tutti/base/text.h"

namespace tutti::bench {

namespace {

// Does arithmetic that stays in registers. A unit takes about a microsecond.
void compute(int64_t units) {
  static std::atomic<double> result;
  double a = 1.0, b = 0.5, c = 0.25, d = 0.125;
  for (int64_t i = 0; i < units * 256; ++i) {
    a = a * 0.999999 + 1e-6;
    b = b * 0.999998 + 1e-6;
    c = c * 0.999997 + 1e-6;
    d = d * 0.999996 + 1e-6;
  }
  result.store(a + b + c + d, std::memory_order_relaxed);
}

// Returns how many units take a microsecond while all ranks compute. All ranks use rank 0's figure.
double units_per_us(Session& session) {
  const Subject subject{nullptr, compute};
  const int64_t units = session.find_iterations(subject);
  const double us = median(session.repeat(subject, 5, units));
  return session.exchange({1 / us}).front().front();
}

// Returns the amount of work before each gradient is ready, in units of compute(). The pass is
// divided by the gradients' sizes. Rounding is carried over, so that the parts add up.
std::vector<int64_t> split_pass(const std::vector<Gradient>& gradients, double units) {
  double elements = 0;
  for (const auto& gradient : gradients) elements += static_cast<double>(gradient.count);
  std::vector<int64_t> parts(gradients.size());
  double seen = 0;
  int64_t dealt = 0;
  for (size_t i = gradients.size(); i-- > 0;) {
    seen += static_cast<double>(gradients[i].count);
    parts[i] = std::llround(units * seen / elements) - dealt;
    dealt += parts[i];
  }
  return parts;
}

}  // namespace

bool run_overlap(Session& session) {
  const auto& settings = session.settings();
  const Way way = settings.way.value_or(Way::named);
  const auto gradients = load_gradient_set(settings.set, settings.elements);
  const auto parts = split_pass(gradients, units_per_us(session) * settings.backward_ms * 1000);
  const auto communicator = session.fresh();
  GradientStep step(*communicator, gradients, way);

  const Subject pass{nullptr, [&](int64_t steps) {
                       for (; steps > 0; --steps)
                         for (size_t i = parts.size(); i-- > 0;) compute(parts[i]);
                     }};
  const Subject together{nullptr, [&](int64_t steps) {
                           for (; steps > 0; --steps) {
                             for (size_t i = parts.size(); i-- > 0;) {
                               compute(parts[i]);
                               step.submit(i);
                             }
                             step.wait();
                           }
                         }};
  const Subject alone{nullptr, [&](int64_t steps) { step.run(steps); }};

  auto record = session.record(way);
  record.wrong = check_step(session, step);
  record.extra["plan_locked"] = run_until_locked(session, *communicator, step);
  together.run(settings.warmup);
  const int64_t iterations = session.find_iterations(together);
  std::vector<double> passes, steps, exchanges, exposed;
  const int64_t preemptions = own_preemptions();
  for (int repetition = 0; repetition < settings.repetitions; ++repetition) {
    passes.push_back(session.max(session.repeat(pass, 1, iterations).front()));
    steps.push_back(session.max(session.repeat(together, 1, iterations).front()));
    exchanges.push_back(session.max(session.repeat(alone, 1, iterations).front()));
    exposed.push_back(steps.back() - passes.back());
  }
  record.wrong += check_step(session, step);

  record.set = settings.set;
  record.op = to_string(ReduceOp::average);
  record.bytes = step.bytes();
  auto timing = summarize(exposed, iterations);
  timing.preemptions = session.count(own_preemptions() - preemptions);
  session.set_timing(record, timing);
  record.extra["backward_us"] = median(passes);
  record.extra["step_us"] = median(steps);
  record.extra["communication_us"] = median(exchanges);
  session.report().print(fmt::format(
      "# tutti-bench overlap --set {} --way {} --backward-ms {}: {}, {}{}\n"
      "#{:>13} {:>13} {:>13} {:>18} {:>13} {:>13} {:>6}\n"
      " {:>13.1f} {:>13.1f} {:>13.1f} {:>18.1f} {:>13.1f} {:>13.1f} {:>6}\n",
      settings.set, to_string(way), settings.backward_ms, format_count(session.size(), "rank"),
      record.transport, settings.pin ? ", pinned" : "", "exposed (us)", "min", "max",
      "communication (us)", "backward (us)", "step (us)", "#wrong", record.time_us, record.min_us,
      record.max_us, median(exchanges), median(passes), median(steps), record.wrong));
  session.report().add(record);
  return record.wrong == 0;
}

}  // namespace tutti::bench
