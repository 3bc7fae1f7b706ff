#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "tests/faults/fault_job.h"

namespace tutti::test {

inline constexpr std::string_view kKinds[] = {"allgather", "reduce_scatter", "broadcast",
                                              "alltoall",  "reduce",         "gather",
                                              "scatter",   "barrier",        "send_recv"};

inline int place_of(std::string_view kind) {
  return static_cast<int>(std::find(std::begin(kKinds), std::end(kKinds), kind) - kKinds);
}

inline std::string kind_name(const testing::TestParamInfo<std::string_view>& info) {
  return std::string(info.param);
}

/// Jobs whose steps are calls of one kind; see kind_steps.h.
class Kinds : public FaultJob, public testing::WithParamInterface<std::string_view> {
 protected:
  // The limit separates a wait that no fault ends from a busy machine.
  static constexpr double kLimitMillis = 15'000;

  std::string named() const { return std::string(GetParam()); }
  std::string blocking() const { return named() + "_blocking"; }

  void kill_one(const std::string& backend, const std::string& form, int ranks) {
    end_one(backend, form, ranks, "kill-after", 137);
  }
  /// The stopped rank is continued at the end, and must exit without harm.
  void stop_one(const std::string& backend, const std::string& form, int ranks) {
    end_one(backend, form, ranks, "stop-after", 0);
  }

 private:
  void end_one(const std::string& backend, const std::string& form, int ranks, const char* how,
               int expected_code) {
    SCOPED_TRACE(fmt::format("{} over {} on {} ranks", form, backend, ranks));
    ranks_ = ranks;
    const int jobs = jobs_++;
    check((place_of(GetParam()) + jobs) % ranks,
          fmt::format("{} {} 0", how, 100'000 + 7'919 * (jobs + place_of(GetParam()))),
          fmt::format("TUTTI_BACKEND={} TUTTI_PEER_TIMEOUT=1.5 FAULT_KIND={}", backend, form),
          kLimitMillis, expected_code, true);
  }

  int jobs_ = 0;
};

}  // namespace tutti::test
