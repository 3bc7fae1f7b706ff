#include "tools/bench/cases/session.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tools/bench/report/figures.h"

namespace tutti::bench {

int64_t own_preemptions() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// This gathers bytes instead of reducing values, because the engine might record an allreduce of
// the benchmark in a plan.
std::vector<std::vector<double>> Session::exchange(const std::vector<double>& own) {
  std::vector<std::vector<double>> all;
  for (const auto& bytes : control_->allgather_bytes("bench", std::as_bytes(std::span(own)))) {
    all.emplace_back(bytes.size() / sizeof(double));
    std::memcpy(all.back().data(), bytes.data(), bytes.size());
  }
  return all;
}

double Session::max(double value) { return slowest({value}).front(); }

double Session::sum(double value) {
  double total = 0;
  for (const auto& theirs : exchange({value})) total += theirs.front();
  return total;
}

int64_t Session::count(int64_t value) { return std::llround(sum(static_cast<double>(value))); }

int64_t Session::agree(int64_t value) {
  return std::llround(exchange({static_cast<double>(value)}).front().front());
}

std::vector<double> Session::slowest(const std::vector<double>& own) {
  auto result = own;
  for (const auto& theirs : exchange(own))
    for (size_t i = 0; i < result.size(); ++i) result[i] = std::max(result[i], theirs[i]);
  return result;
}

int64_t Session::find_iterations(const Subject& subject) {
  if (settings_.iterations > 0) return settings_.iterations;
  const double wanted = settings_.repetition_ms / 1000;
  for (int64_t batch = 1;; batch *= 4) {
    barrier();
    const auto begin = Clock::now();
    subject.run(batch);
    const double seconds = seconds_since(begin);
    // A quarter of a repetition is long enough for an estimate.
    const auto found = iterations_for(wanted, batch, seconds);
    const int64_t decided = agree(found <= 4 * batch ? found : 0);
    if (decided > 0) return decided;
  }
}

std::vector<double> Session::repeat(const Subject& subject, int repetitions, int64_t iterations) {
  std::vector<double> times;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    if (subject.refill) subject.refill();
    barrier();
    const auto begin = Clock::now();
    subject.run(iterations);
    times.push_back(seconds_since(begin) * 1e6 / static_cast<double>(iterations));
  }
  return times;
}

Timing Session::measure(const Subject& subject) {
  subject.run(settings_.warmup);
  const int64_t iterations = find_iterations(subject);
  const int64_t before = own_preemptions();
  const auto times = repeat(subject, settings_.repetitions, iterations);
  const int64_t preemptions = own_preemptions() - before;
  auto timing = summarize(slowest(times), iterations);
  timing.preemptions = count(preemptions);
  return timing;
}

Record Session::record(Way way) const {
  Record record;
  record.case_name = settings_.case_name;
  record.way = to_string(way);
  record.ranks = size();
  record.transport = control_->backend();
  record.extra["pinned"] = settings_.pin;
  return record;
}

void Session::set_timing(Record& record, const Timing& timing) const {
  record.time_us = timing.median_us;
  record.min_us = timing.min_us;
  record.max_us = timing.max_us;
  record.repetitions = timing.repetitions;
  record.iterations = timing.iterations;
  record.extra["preemptions"] = timing.preemptions;
}

Timing summarize(const std::vector<double>& times_us, int64_t iterations) {
  const auto [least, most] = std::minmax_element(times_us.begin(), times_us.end());
  return {median(times_us), *least, *most, static_cast<int>(times_us.size()), iterations};
}

}  // namespace tutti::bench
