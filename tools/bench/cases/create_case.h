#pragma once

#include <string>
#include <vector>

#include "tools/bench/report/record.h"
#include "tools/bench/report/report.h"

namespace tutti::bench {

/// Takes up what a job left in Settings::sample_file. Throws Error(corrupt_data).
void add_sample(const std::string& line, Record& record, std::vector<double>& samples_us);

/// The row of `create`, from one sample a job.
void report_create(Report& report, Record& record, const std::vector<double>& samples_us);

}  // namespace tutti::bench
