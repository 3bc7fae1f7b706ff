#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "benchmarks/common/measure.h"

namespace tutti::benchmarks {

/// One measured row, with the fields that every benchmark program of the project prints. Its texts
/// are names of this project, so nothing needs escaping.
struct Row {
  std::string program, case_name, way = {};
  bool in_place = true;
  std::string set = {};
  int64_t bytes = 0;
  std::string dtype = "f32", op = "sum";
  int ranks = 1;
  std::string transport = {};
  Timing timing = {};
  int64_t wrong = 0;
  std::map<std::string, double> numbers = {};     // go to extra
  std::map<std::string, std::string> words = {};  // go to extra
};

inline void print(const Row& row) {
  std::string extra;
  char number[64];
  for (const auto& [name, value] : row.numbers) {
    std::snprintf(number, sizeof number, "%.6g", value);
    extra += (extra.empty() ? "\"" : ",\"") + name + "\":" + number;
  }
  for (const auto& [name, value] : row.words)
    extra += (extra.empty() ? "\"" : ",\"") + name + "\":\"" + value + "\"";
  std::printf(
      "{\"program\":\"%s\",\"case\":\"%s\",\"way\":\"%s\",\"in_place\":%s,\"set\":\"%s\","
      "\"bytes\":%lld,\"dtype\":\"%s\",\"op\":\"%s\",\"ranks\":%d,\"transport\":\"%s\","
      "\"time_us\":%.4f,\"min_us\":%.4f,\"max_us\":%.4f,\"repetitions\":%d,\"iterations\":%lld,"
      "\"wrong\":%lld,\"extra\":{%s}}\n",
      row.program.c_str(), row.case_name.c_str(), row.way.c_str(), row.in_place ? "true" : "false",
      row.set.c_str(), static_cast<long long>(row.bytes), row.dtype.c_str(), row.op.c_str(),
      row.ranks, row.transport.c_str(), row.timing.median_us, row.timing.min_us, row.timing.max_us,
      row.timing.repetitions, static_cast<long long>(row.timing.iterations),
      static_cast<long long>(row.wrong), extra.c_str());
  std::fflush(stdout);
}

}  // namespace tutti::benchmarks
