#pragma once

#include <array>
#include <string_view>

#include "tests/simulation/case.h"

namespace tutti::simulation {

/// Calls visit(name, field) for each number of the world. The text, the parser and the shrinking
/// use this list, so that a new field needs one line.
template <class TheWorld, class Visit>
void for_each_field(TheWorld& world, Visit&& visit) requires requires {
  world.replay_after;
}
{
  visit("size", world.size);
  visit("replay_after", world.replay_after);
  visit("fusion_bytes", world.fusion_bytes);
  visit("partition_bytes", world.partition_bytes);
  visit("cache_capacity", world.cache_capacity);
  visit("peer_timeout", world.peer_timeout);
  visit("operation_timeout", world.operation_timeout);
  visit("stall_warning", world.stall_warning);
  visit("latency", world.latency);
  visit("far", world.far);
  visit("bandwidth", world.bandwidth);
  visit("has_launcher", world.has_launcher);
  visit("cannot_cancel", world.cannot_cancel);
  visit("fails_before_reason", world.fails_before_reason);
  visit("works_elsewhere", world.works_elsewhere);
  visit("serves_blocking", world.serves_blocking);
  visit("over_streams", world.over_streams);
  visit("over_memory", world.over_memory);
  visit("buffer", world.buffer);
  visit("splits", world.splits);
  visit("credit", world.credit);
  visit("segment_bytes", world.segment_bytes);
  visit("chunk_bytes", world.chunk_bytes);
  visit("one_shot_bytes", world.one_shot_bytes);
  visit("in_place_bytes", world.in_place_bytes);
  visit("spins", world.spins);
  visit("lacks_memory", world.lacks_memory);
  visit("heals_at", world.heals_at);
  visit("salt", world.salt);
}

template <class TheFault, class Visit>
void for_each_field(TheFault& fault, Visit&& visit) requires requires {
  fault.event;
}
{
  visit("rank", fault.rank);
  visit("peer", fault.peer);
  visit("at", fault.at);
  visit("event", fault.event);
  visit("length", fault.length);
  visit("amount", fault.amount);
  visit("phase", fault.phase);
}

inline constexpr std::array<std::string_view, kFaultKinds> kFaultNames = {"kill",
                                                                          "stop",
                                                                          "jump",
                                                                          "reset",
                                                                          "half_open",
                                                                          "delay",
                                                                          "clog",
                                                                          "slow_link",
                                                                          "damage",
                                                                          "record_late",
                                                                          "record_missing",
                                                                          "record_of_other",
                                                                          "store_slow",
                                                                          "store_gone",
                                                                          "launcher_slow",
                                                                          "operation_fails",
                                                                          "throws_in_start",
                                                                          "throws_in_observer",
                                                                          "abandons"};
inline constexpr std::array<std::string_view, kActionKinds> kActionNames = {
    "submit", "wait", "block", "join", "pause", "allocate", "retire", "close"};
inline constexpr std::array<std::string_view, 8> kReduceOpNames = {
    "sum", "average", "min", "max", "product", "band", "bor", "bxor"};

}  // namespace tutti::simulation
