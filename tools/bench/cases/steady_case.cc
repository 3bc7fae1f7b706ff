// Counts the messages, bytes and allocations of each step once the engine replays it without
// negotiation.
#include <fmt/format.h>

#include "tools/bench/cases/cases.h"
#include "tools/bench/cases/gradient_step.h"
#include "tutti/base/text.h"

namespace tutti::bench {

namespace {

// The increase of a rank's counters in one step.
struct StepCount {
  uint64_t data_messages = 0, data_bytes = 0, predicted_messages = 0, predicted_bytes = 0,
           control_messages = 0, negotiation_messages = 0, allocations = 0;
};

StepCount difference(const Statistics& after, const Statistics& before) {
  return {after.data_messages - before.data_messages,
          after.data_bytes - before.data_bytes,
          after.predicted_messages - before.predicted_messages,
          after.predicted_bytes - before.predicted_bytes,
          after.control_messages - before.control_messages,
          after.negotiation_messages - before.negotiation_messages,
          after.allocations - before.allocations};
}

}  // namespace

bool run_steady(Session& session) {
  const auto& settings = session.settings();
  const Way way = settings.way.value_or(Way::named);
  const auto communicator = session.fresh();
  GradientStep step(*communicator, load_gradient_set(settings.set, settings.elements), way);
  auto record = session.record(way);
  record.set = settings.set;
  record.op = to_string(ReduceOp::average);
  record.bytes = step.bytes();
  auto& report = session.report();
  report.print(fmt::format("# tutti-bench steady --set {} --way {}: {} tensors, {} B, {}, {}\n",
                           settings.set, to_string(way), step.size(), step.bytes(),
                           format_count(session.size(), "rank"), record.transport));
  record.wrong = check_step(session, step);
  const bool locked = run_until_locked(session, *communicator, step);
  record.extra["plan_locked"] = locked;

  // Each step must send exactly what the plan predicts.
  session.barrier();
  auto before = communicator->statistics();
  const auto start = before;
  const auto begin = Clock::now();
  int64_t uneven = 0;  // steps that did not send what their plan predicts
  for (int64_t i = 0; i < settings.steps; ++i) {
    step.run();
    const auto after = communicator->statistics();
    const auto count = difference(after, before);
    uneven += count.data_messages != count.predicted_messages ||
              count.data_bytes != count.predicted_bytes;
    before = after;
  }
  const double us = session.max(seconds_since(begin)) * 1e6 / static_cast<double>(settings.steps);
  const auto total = difference(before, start);
  const int64_t wrong_at_end = session.count(step.count_wrong());
  record.wrong += wrong_at_end + check_step(session, step);

  const auto all = [&](uint64_t value) { return session.count(static_cast<int64_t>(value)); };
  const int64_t control = all(total.control_messages),
                negotiation = all(total.negotiation_messages), allocations = all(total.allocations),
                all_uneven = session.count(uneven);
  record.time_us = record.min_us = record.max_us = us;
  record.repetitions = 1;
  record.iterations = settings.steps;
  const int64_t messages = all(total.data_messages), bytes = all(total.data_bytes),
                predicted_messages = all(total.predicted_messages),
                predicted_bytes = all(total.predicted_bytes);
  record.extra["data_messages"] = messages;
  record.extra["predicted_messages"] = predicted_messages;
  record.extra["data_bytes"] = bytes;
  record.extra["predicted_bytes"] = predicted_bytes;
  record.extra["uneven_steps"] = all_uneven;
  record.extra["control_messages"] = control;
  record.extra["negotiation_messages"] = negotiation;
  record.extra["allocations"] = allocations;
  const bool holds = locked && control == 0 && negotiation == 0 && allocations == 0 &&
                     all_uneven == 0 && predicted_messages > 0 && record.wrong == 0;
  record.extra["holds"] = holds;
  report.print(
      fmt::format("# all ranks together          predicted          counted\n"
                  "plan locked            {:>16} {:>16}\n"
                  "data messages          {:>16} {:>16}\n"
                  "data bytes             {:>16} {:>16}\n"
                  "control messages       {:>16} {:>16}\n"
                  "negotiation messages   {:>16} {:>16}\n"
                  "allocations            {:>16} {:>16}\n"
                  "steps unlike the plan  {:>16} {:>16}\n"
                  "wrong elements         {:>16} {:>16}\n"
                  "# each of {} steps: {:.1f} us: {}\n",
                  "yes", locked ? "yes" : "no", predicted_messages, messages, predicted_bytes,
                  bytes, 0, control, 0, negotiation, 0, allocations, 0, all_uneven, 0, record.wrong,
                  settings.steps, us, holds ? "as predicted" : "NOT as predicted"));
  report.add(record);
  return holds;
}

}  // namespace tutti::bench
