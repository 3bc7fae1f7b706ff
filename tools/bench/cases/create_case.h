#pragma once

#include <string>
#include <vector>

#include "tools/bench/report/record.h"
#include "tools/bench/report/report.h"

namespace tutti::bench {

/// Adds the sample that a job appended to Settings::sample_file. Throws Error(corrupt_data).
void add_sample(const std::string& line, Record& record, std::vector<double>& samples_us);

/// Reports the row of `create` from one sample per job.
void report_create(Report& report, Record& record, const std::vector<double>& samples_us);

}  // namespace tutti::bench
