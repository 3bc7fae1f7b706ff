// Measures single small allreduces, each timed by itself.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tools/bench/cases/cases.h"
#include "tools/bench/report/figures.h"
#include "tools/bench/workload/exact_data.h"
#include "tutti/base/text.h"
#include "tutti/tensor/tensor.h"

namespace tutti::bench {

namespace {

constexpr std::array<double, 6> kPercents = {0, 50, 90, 99, 99.9, 100};

void call(Communicator& communicator, Way way, bool polled, TensorView tensor) {
  if (way == Way::blocking)
    return communicator.allreduce_blocking("latency", tensor, ReduceOp::sum);
  auto work = communicator.allreduce("latency", tensor, ReduceOp::sum);
  while (polled && !work.done()) {
  }
  work.wait();
}

}  // namespace

bool run_latency(Session& session) {
  const auto& settings = session.settings();
  const Way way = settings.way.value_or(Way::named);
  const bool polled = settings.polled && way == Way::named;
  const auto communicator = session.fresh();
  const ExactData data(DataType::f32, ReduceOp::sum, session.size());
  const auto value = static_cast<float>(data.input(session.rank(), 0));
  const auto expected = static_cast<float>(data.reduced(0));
  float element = 0;
  const TensorView tensor(&element, Shape{1}, DataType::f32);
  int64_t wrong = 0;
  std::vector<double> micros;
  micros.reserve(static_cast<size_t>(settings.calls));

  // The first calls let the engine learn the step. Later results are checked outside the timed
  // part.
  const int64_t warmup = std::clamp<int64_t>(settings.calls / 10, 100, 1000);
  session.barrier();
  for (int64_t i = -warmup; i < settings.calls; ++i) {
    element = value;
    const auto begin = Clock::now();
    call(*communicator, way, polled, tensor);
    const double seconds = seconds_since(begin);
    wrong += element != expected;
    if (i >= 0) micros.push_back(seconds * 1e6);
  }

  std::sort(micros.begin(), micros.end());
  std::vector<double> own;
  for (const double percent : kPercents) own.push_back(percentile(micros, percent));
  const auto slowest = session.slowest(own);
  auto record = session.record(way);
  record.bytes = 4;
  record.has_percentiles = true;
  record.time_us = record.p50_us = slowest[1];
  record.min_us = slowest[0];
  record.max_us = slowest[5];
  record.p99_us = slowest[3];
  record.repetitions = 1;
  record.iterations = settings.calls;
  record.wrong = session.count(wrong);
  record.extra["p90_us"] = slowest[2];
  record.extra["p99_9_us"] = slowest[4];
  record.extra["polled"] = polled;
  session.report().print(
      fmt::format("# tutti-bench latency --way {}{}: {}, {}, {} allreduces of 4 B\n"
                  "#{:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6}\n"
                  " {:>9.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>6}\n",
                  to_string(way), polled ? " --polled" : "", format_count(session.size(), "rank"),
                  record.transport, settings.calls, "min (us)", "median", "p90", "p99", "p99.9",
                  "max", "#wrong", slowest[0], slowest[1], slowest[2], slowest[3], slowest[4],
                  slowest[5], record.wrong));
  session.report().add(record);
  return record.wrong == 0;
}

}  // namespace tutti::bench
