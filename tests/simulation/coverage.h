#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/simulation/case.h"
#include "tests/simulation/record.h"

namespace tutti::simulation {

/// By tutti::MessageType.
inline constexpr std::array<std::string_view, 14> kMessageNames = {
    "requests", "answers", "resend", "plan_joined", "plan_failed", "plan_left", "veto",
    "ping",     "pong",    "fault",  "timeline",    "leaving",     "pair_left", "pair_recalled"};

/// The names of the values of Sight.
inline constexpr std::array<std::string_view, kSights> kSightNames = {
    "operations",     "many_chunks",  "vetoes",       "cancels", "joins",     "pairs",
    "blocking_calls", "done_at_once", "shared_input", "direct",  "no_memory", "rings"};

/// Counts how many cases had what, and to which errors and phases they came. It has plain numbers
/// only, so that it may lie in memory that processes share.
struct Coverage {
  uint64_t cases = 0;
  std::array<uint64_t, kFaultKinds> faults{};  // that had something to spoil
  std::array<uint64_t, kActionKinds> actions{};
  std::array<uint64_t, kCollectiveKindCount> kinds{};
  std::array<uint64_t, 17> operations_by_error{};  // 0: that ended well
  std::array<uint64_t, 49> phase_edges{};          // from * 7 + to: cases in which a rank took it
  std::array<uint64_t, 14> messages{};             // cases in which a rank sent one
  std::array<uint64_t, kSights> sights{};          // what was done in shared memory

  std::array<uint64_t, 18> looks{};  // what each invariant has looked at
  void add(const Case& from, const Record& record);
  void add(const Coverage& other);
  std::string to_text() const;
};

}  // namespace tutti::simulation
