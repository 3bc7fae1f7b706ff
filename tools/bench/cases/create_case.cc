// Measures the time from the start of fresh processes to a first result.
#include "tools/bench/cases/create_case.h"

#include <fmt/format.h>

#include <fstream>

#include "tools/bench/cases/cases.h"
#include "tools/bench/workload/exact_data.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/tensor/tensor.h"

namespace tutti::bench {

bool run_create(Session& session) {
  const ExactData data(DataType::f32, ReduceOp::sum, session.size());
  auto element = static_cast<float>(data.input(session.rank(), 0));
  session.control().allreduce_blocking("first", TensorView(&element, Shape{1}, DataType::f32),
                                       ReduceOp::sum);
  const double own = seconds_since(session.started()) * 1e6;
  const double micros = session.max(own);
  auto record = session.record(Way::blocking);
  record.wrong = session.count(element != static_cast<float>(data.reduced(0)));
  const auto& sample_file = session.settings().sample_file;
  if (sample_file.empty()) {
    report_create(session.report(), record, {micros});
  } else if (session.rank() == 0) {
    std::ofstream(sample_file, std::ios::app)
        << fmt::format("{} {} {} {}\n", micros, session.size(), record.transport, record.wrong);
  }
  return record.wrong == 0;
}

void report_create(Report& report, Record& record, const std::vector<double>& samples_us) {
  const auto timing = summarize(samples_us, 1);
  record.bytes = 4;
  record.time_us = timing.median_us;
  record.min_us = timing.min_us;
  record.max_us = timing.max_us;
  record.repetitions = timing.repetitions;
  record.iterations = 1;
  report.print(fmt::format(
      "# tutti-bench create: {}, {}, {} jobs\n"
      "#{:>11} {:>12} {:>12} {:>6}\n {:>11.0f} {:>12.0f} {:>12.0f} {:>6}\n",
      format_count(record.ranks, "rank"), record.transport, timing.repetitions, "median (us)",
      "min", "max", "#wrong", record.time_us, record.min_us, record.max_us, record.wrong));
  report.add(record);
}

void add_sample(const std::string& line, Record& record, std::vector<double>& samples_us) {
  const auto fields = split_text(line, ' ');
  if (fields.size() != 4)
    throw Error(ErrorCode::corrupt_data, fmt::format("a job left \"{}\" as its sample", line));
  samples_us.push_back(parse_number(fields[0], 0, 1e12).value_or(0));
  record.ranks = static_cast<int>(parse_integer(fields[1], 1, 1 << 30).value_or(1));
  record.transport = fields[2];
  record.wrong += parse_integer(fields[3], 0, 1 << 30).value_or(1);
}

}  // namespace tutti::bench
