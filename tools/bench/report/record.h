#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tutti::bench {

/// One measured row, as --json and --csv write it.
struct Record {
  std::string case_name, way;
  bool in_place = true;
  std::string set;
  int64_t bytes = 0;
  std::string dtype = "f32", op = "sum";
  int ranks = 1;
  std::string transport;
  double time_us = 0, min_us = 0, max_us = 0;
  bool has_percentiles = false;  // latency only
  double p50_us = 0, p99_us = 0;
  int repetitions = 0;
  int64_t iterations = 0;
  int64_t wrong = 0;
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();
};

/// Returns one line without a line end.
std::string to_json(const Record& record);
/// Returns the column names, which are the fields of the JSON. The column `extra` has quoted JSON.
std::string csv_header();
std::string to_csv(const Record& record);

}  // namespace tutti::bench
