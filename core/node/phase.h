#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace tutti {

/// A rank is in one phase of the life of its communicator. Node::become() alone changes it, along
/// these edges:
///
///   forming   -> running    all ranks have met
///   forming   -> over       the ranks do not meet; abandon() is called
///   running   -> departing  a farewell arrives
///   running   -> inquiring  a link ended without a farewell
///   running   -> closing    the program closes
///   running   -> broken     a fault
///   departing -> inquiring  a link ended without a farewell
///   departing -> closing    the program closes
///   departing -> broken     a fault
///   inquiring -> broken     the cause is found, or not found in time, or a peer sends a fault
///   closing   -> broken     a fault
///   closing   -> over       the launcher knows, the timelines are gathered
///   broken    -> over       the program closes
///
///   forming --> running --> departing          from running and departing: --> closing
///      |           |            |              from all but forming and over: --> broken
///      |           +-> inquiring <+
///      |                  |
///      +--> over <----- broken <---- closing --> over
enum class Phase : uint8_t {
  forming,    // the ranks connect; no operation is accepted yet
  running,    // all ranks take part
  departing,  // another rank has sent its farewell; operations that it finished still complete
  inquiring,  // a link ended without a farewell, and the cause is not known yet
  closing,    // this rank closes and takes no part in operations any more
  broken,     // an error has ended the communicator on all ranks
  over        // closed, for good
};
inline constexpr int kPhaseCount = 7;

/// One arrow of the diagram above: the phase before and the phase after.
using PhaseEdge = std::pair<Phase, Phase>;
std::span<const PhaseEdge> phase_edges();
/// Returns whether the diagram has an arrow between these phases.
bool may_follow(Phase from, Phase to);
std::string_view to_string(Phase phase);

}  // namespace tutti
