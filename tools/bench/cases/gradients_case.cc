// Measures the averaging of all gradients of a model.
#include <fmt/format.h>
#include <time.h>

#include "tools/bench/cases/cases.h"
#include "tools/bench/cases/gradient_step.h"
#include "tools/bench/report/figures.h"

namespace tutti::bench {

namespace {

// Returns the CPU time of all threads of this process in us.
double process_cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

// Returns the engine's own CPU time per tensor, without the time for the data (see the case's
// details).
double engine_cpu_per_tensor(Session& session, std::vector<Gradient> gradients, Way way) {
  for (auto& gradient : gradients) gradient.count = 1;
  const auto communicator = session.fresh();
  GradientStep step(*communicator, gradients, way);
  run_until_locked(session, *communicator, step);
  const Subject subject{nullptr, [&](int64_t steps) { step.run(steps); }};
  const int64_t steps = session.find_iterations(subject);
  std::vector<double> figures;
  for (int repetition = 0; repetition < session.settings().repetitions; ++repetition) {
    session.barrier();
    const double before = process_cpu_us();
    step.run(steps);
    figures.push_back(
        session.sum(process_cpu_us() - before) /
        static_cast<double>(steps * static_cast<int64_t>(step.size()) * session.size()));
  }
  return median(figures);
}

// Records the counters per step, as the largest value over the ranks.
void count_steps(Session& session, Communicator& communicator, GradientStep& step, Record& record) {
  constexpr int kSteps = 20;
  const auto before = communicator.statistics();
  step.run(kSteps);
  const auto after = communicator.statistics();
  const auto count = [&](const char* name, uint64_t Statistics::*member) {
    const auto grown = static_cast<double>(after.*member - before.*member);
    record.extra[fmt::format("{}_per_step", name)] = session.max(grown / kSteps);
  };
  count("buckets", &Statistics::buckets);
  count("replayed_buckets", &Statistics::replayed_buckets);
  count("data_messages", &Statistics::data_messages);
  count("data_bytes", &Statistics::data_bytes);
  count("control_messages", &Statistics::control_messages);
  count("negotiation_messages", &Statistics::negotiation_messages);
  count("allocations", &Statistics::allocations);
}

}  // namespace

bool run_gradients(Session& session) {
  const auto& settings = session.settings();
  const Way way = settings.way.value_or(Way::named);
  const auto gradients = load_gradient_set(settings.set, settings.elements);
  auto record = session.record(way);
  record.set = settings.set;
  record.op = to_string(ReduceOp::average);
  auto& report = session.report();

  {
    const auto communicator = session.fresh();
    GradientStep step(*communicator, gradients, way);
    record.bytes = step.bytes();
    report.print(fmt::format(
        "# tutti-bench gradients --set {} --way {}: {} tensors, {:.1f} MB, {} "
        "ranks, {}{}\n",
        settings.set, to_string(way), step.size(), static_cast<double>(step.bytes()) / 1e6,
        session.size(), record.transport, settings.pin ? ", pinned" : ""));
    record.wrong = check_step(session, step);
    record.extra["tensors"] = step.size();
    record.extra["plan_locked"] = run_until_locked(session, *communicator, step);
    session.set_timing(record, session.measure({nullptr, [&](int64_t steps) { step.run(steps); }}));
    count_steps(session, *communicator, step, record);
    record.wrong += check_step(session, step);
  }
  const double cpu = engine_cpu_per_tensor(session, gradients, way);
  record.extra["engine_cpu_us_per_tensor"] = cpu;

  const auto& extra = record.extra;
  report.print(fmt::format(
      "#{:>12} {:>12} {:>12} {:>8} {:>9} {:>9} {:>9} {:>12} {:>9} {:>11} {:>6}\n"
      " {:>12.1f} {:>12.1f} {:>12.1f} {:>8.2f} {:>9.1f} {:>9.1f} {:>9.1f} {:>12.0f} {:>9.1f} "
      "{:>11.3f} {:>6}\n",
      "step (us)", "min", "max", "GB/s", "buckets", "messages", "control", "bytes sent", "allocs",
      "cpu us/tens", "#wrong", record.time_us, record.min_us, record.max_us,
      static_cast<double>(record.bytes) / record.time_us / 1000,
      extra["buckets_per_step"].get<double>(), extra["data_messages_per_step"].get<double>(),
      extra["control_messages_per_step"].get<double>(), extra["data_bytes_per_step"].get<double>(),
      extra["allocations_per_step"].get<double>(), cpu, record.wrong));
  report.add(record);
  return record.wrong == 0;
}

}  // namespace tutti::bench
