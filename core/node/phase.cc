#include "tutti/core/node/phase.h"

#include <algorithm>
#include <array>

namespace tutti {

std::span<const PhaseEdge> phase_edges() {
  using enum Phase;
  static constexpr std::array<PhaseEdge, 13> kEdges = {{{forming, running},
                                                        {forming, over},
                                                        {running, departing},
                                                        {running, inquiring},
                                                        {running, closing},
                                                        {running, broken},
                                                        {departing, inquiring},
                                                        {departing, closing},
                                                        {departing, broken},
                                                        {inquiring, broken},
                                                        {closing, broken},
                                                        {closing, over},
                                                        {broken, over}}};
  return kEdges;
}

bool may_follow(Phase from, Phase to) {
  return std::ranges::count(phase_edges(), PhaseEdge{from, to}) > 0;
}

std::string_view to_string(Phase phase) {
  static constexpr std::array<std::string_view, kPhaseCount> kNames = {
      "forming", "running", "departing", "inquiring", "closing", "broken", "over"};
  return kNames.at(static_cast<size_t>(phase));
}

}  // namespace tutti
