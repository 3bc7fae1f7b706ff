#include "tools/bench/report/record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace tutti::bench {

namespace {

// Rounds to nanoseconds. Smaller differences cannot be measured.
double rounded(double micros) { return std::round(micros * 1000) / 1000; }

nlohmann::ordered_json fields(const Record& record, bool all) {
  nlohmann::ordered_json json = {{"program", "tutti"},
                                 {"case", record.case_name},
                                 {"way", record.way},
                                 {"in_place", record.in_place},
                                 {"set", record.set},
                                 {"bytes", record.bytes},
                                 {"dtype", record.dtype},
                                 {"op", record.op},
                                 {"ranks", record.ranks},
                                 {"transport", record.transport},
                                 {"time_us", rounded(record.time_us)},
                                 {"min_us", rounded(record.min_us)},
                                 {"max_us", rounded(record.max_us)}};
  if (record.has_percentiles) {
    json["p50_us"] = rounded(record.p50_us);
    json["p99_us"] = rounded(record.p99_us);
  } else if (all) {
    json["p50_us"] = nullptr;
    json["p99_us"] = nullptr;
  }
  json["repetitions"] = record.repetitions;
  json["iterations"] = record.iterations;
  json["wrong"] = record.wrong;
  json["extra"] = record.extra;
  return json;
}

std::string csv_field(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";
  auto text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find_first_of("\",\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? "\"\"" : std::string(1, letter);
  return quoted + '"';
}

}  // namespace

std::string to_json(const Record& record) { return fields(record, false).dump(); }

std::string csv_header() {
  std::vector<std::string> names;
  const auto all = fields(Record(), true);
  for (const auto& [name, value] : all.items()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ","));
}

std::string to_csv(const Record& record) {
  std::vector<std::string> values;
  const auto all = fields(record, true);
  for (const auto& [name, value] : all.items()) values.push_back(csv_field(value));
  return fmt::format("{}", fmt::join(values, ","));
}

}  // namespace tutti::bench
