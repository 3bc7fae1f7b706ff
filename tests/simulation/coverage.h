#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/simulation/case.h"
#include "tests/simulation/record.h"

namespace tutti::simulation {

/// The names of the values of tutti::MessageType.
inline constexpr std::array<std::string_view, 14> kMessageNames = {
    "requests", "answers", "resend", "plan_joined", "plan_failed", "plan_left", "veto",
    "ping",     "pong",    "fault",  "timeline",    "leaving",     "pair_left", "pair_recalled"};

/// The names of the values of Sight.
inline constexpr std::array<std::string_view, kSights> kSightNames = {
    "operations",     "many_chunks",  "vetoes",       "cancels", "joins",     "pairs",
    "blocking_calls", "done_at_once", "shared_input", "direct",  "no_memory", "rings"};

/// Counts the features, errors and phases of many cases. It holds only plain numbers, so that it
/// may lie in memory that processes share.
struct Coverage {
  uint64_t cases = 0;
  std::array<uint64_t, kFaultKinds> faults{};  // cases with a fault that had an effect
  std::array<uint64_t, kActionKinds> actions{};
  std::array<uint64_t, kCollectiveKindCount> kinds{};
  std::array<uint64_t, 17> operations_by_error{};  // operations by error code; 0: ended well
  std::array<uint64_t, 49> phase_edges{};          // cases with the edge from * 7 + to
  std::array<uint64_t, 14> messages{};             // cases in which a rank sent such a message
  std::array<uint64_t, kSights> sights{};          // cases with such an event in shared memory

  std::array<uint64_t, 18> looks{};  // checks of each invariant
  void add(const Case& from, const Record& record);
  void add(const Coverage& other);
  std::string to_text() const;
};

}  // namespace tutti::simulation
