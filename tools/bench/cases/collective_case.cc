// Measures a collective over a range of sizes and prints the columns of nccl-tests.
#include <fmt/format.h>

#include "tools/bench/cases/cases.h"
#include "tools/bench/cases/exercise.h"
#include "tools/bench/report/figures.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::bench {

namespace {

struct Measurement {
  Timing timing;
  int64_t wrong = 0;
};

Measurement measure(Session& session, const Exercise::Call& call) {
  const auto communicator = session.fresh();
  Exercise exercise(*communicator, call);
  Measurement result;
  const auto check = [&] {
    exercise.refill();
    exercise.run(1);
    result.wrong += session.count(exercise.count_wrong());
  };
  check();
  // A sum in place multiplies the values by the number of ranks each time, so they are refilled
  // between repetitions. Floats may reach infinity within a repetition. This costs no time, because
  // vector instructions add infinity as fast as any number. Integers wrap.
  const auto refill = call.in_place ? std::function([&] { exercise.refill(); }) : nullptr;
  result.timing = session.measure({refill, [&](int64_t iterations) { exercise.run(iterations); }});
  check();
  return result;
}

std::string heading(bool both) {
  const std::string columns =
      fmt::format(" {:>10} {:>7} {:>7} {:>6}", "time", "algbw", "busbw", "#wrong");
  const std::string units =
      fmt::format(" {:>10} {:>7} {:>7} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
  const std::string left =
      fmt::format("#{:>11} {:>12} {:>6} {:>8} {:>5}", "size", "count", "type", "redop", "root");
  const std::string left_units =
      fmt::format("#{:>11} {:>12} {:>6} {:>8} {:>5}", "(B)", "(elements)", "", "", "");
  if (!both) return fmt::format("{}{}\n{}{}\n", left, columns, left_units, units);
  return fmt::format("#{:>46} {:^34}{:^34}\n{}{}{}\n{}{}{}\n", "", "out-of-place", "in-place", left,
                     columns, columns, left_units, units, units);
}

std::string bandwidth_column(double value) {
  return value >= 100 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

std::string columns_of(const Measurement& measurement, double bytes, double factor) {
  const double algorithm = bytes / measurement.timing.median_us / 1000;
  return fmt::format(" {:>10.2f} {:>7} {:>7} {:>6}", measurement.timing.median_us,
                     bandwidth_column(algorithm), bandwidth_column(algorithm * factor),
                     measurement.wrong);
}

void check_request(const Session& session, const Case& entry) {
  const auto& settings = session.settings();
  if ((entry.options & kRoot) && settings.root >= session.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("--root {}: there are ranks 0 to {}",
                                                         settings.root, session.size() - 1));
  if (entry.name == "sendrecv" && session.size() == 1)
    throw Error(ErrorCode::invalid_argument, "sendrecv needs at least 2 ranks; give --ranks 2");
  if (settings.way == Way::vector && settings.dtype != DataType::f32)
    throw Error(ErrorCode::invalid_argument, "--way vector is measured with f32 only");
}

}  // namespace

bool run_collective(Session& session) {
  const auto& settings = session.settings();
  const auto& entry = find_case(settings.case_name);
  check_request(session, entry);
  const Way way = settings.way.value_or(entry.ways.front());
  const bool is_barrier = entry.name == "barrier";
  const bool reduces = entry.options & kOp;
  const double factor = bus_factor(entry.name, session.size());
  std::vector<bool> places;  // true: in place; false: out of place
  for (const bool in_place : {false, true})
    if (exists(entry.name, way, in_place) &&
        settings.placement != (in_place ? Placement::out_of_place : Placement::in_place))
      places.push_back(in_place);
  if (places.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--place: {} --way {} exists {} only", entry.name, to_string(way),
                            exists(entry.name, way, true) ? "in place" : "out of place"));

  auto& report = session.report();
  report.print(fmt::format("# tutti-bench {} --way {}: {}, {}{}\n", entry.name, to_string(way),
                           format_count(session.size(), "rank"), session.control().backend(),
                           settings.pin ? ", pinned" : ""));
  if (places.size() == 1)
    report.print(fmt::format("# {}\n", is_barrier       ? "no data"
                                       : places.front() ? "in place"
                                                        : "out of place"));
  report.print(heading(places.size() == 2));

  int64_t all_wrong = 0;
  for (const int64_t wanted : is_barrier ? std::vector<int64_t>{0} : settings.bytes) {
    const auto volume = volume_of(entry.name, wanted, settings.dtype, session.size());
    const int64_t bytes = volume.total * size_of(settings.dtype);
    std::string row = fmt::format(" {:>11} {:>12} {:>6} {:>8} {:>5}", bytes, volume.count,
                                  is_barrier ? "-" : to_string(settings.dtype),
                                  reduces ? to_string(settings.op) : "-",
                                  entry.options & kRoot ? std::to_string(settings.root) : "-");
    for (const bool in_place : places) {
      const auto measured = measure(
          session, {entry.name, way, in_place, settings.dtype, settings.op, settings.root, volume});
      all_wrong += measured.wrong;
      row += columns_of(measured, static_cast<double>(bytes), factor);
      auto record = session.record(way);
      record.in_place = in_place;
      record.bytes = bytes;
      record.dtype = is_barrier ? "" : to_string(settings.dtype);
      record.op = reduces ? to_string(settings.op) : "";
      record.wrong = measured.wrong;
      session.set_timing(record, measured.timing);
      const double algorithm = static_cast<double>(bytes) / measured.timing.median_us / 1000;
      record.extra["count"] = volume.count;
      record.extra["algbw_gb_per_s"] = algorithm;
      record.extra["busbw_gb_per_s"] = algorithm * factor;
      report.add(record);
    }
    report.print(row + "\n");
  }
  report.draw(fmt::format("{} {}{}, {}, {}", entry.name, to_string(settings.dtype),
                          reduces ? fmt::format(" {}", to_string(settings.op)) : "",
                          format_count(session.size(), "rank"), session.control().backend()));
  return all_wrong == 0;
}

}  // namespace tutti::bench
