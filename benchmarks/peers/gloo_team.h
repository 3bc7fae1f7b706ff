#pragma once

#include <gloo/rendezvous/context.h>

#include <memory>
#include <string>

#include "benchmarks/common/flags.h"
#include "benchmarks/common/fork_team.h"
#include "benchmarks/common/measure.h"

namespace tutti::benchmarks {

using ContextPtr = std::shared_ptr<gloo::rendezvous::Context>;

/// Connects all ranks of the team over TCP, at the addresses in the flag `hosts`, or over loopback
/// without that flag.
ContextPtr connect_gloo(const Flags& flags, const ForkTeam& team, const std::string& folder);

inline Method gloo_method(const Flags& flags) {
  return {static_cast<int>(flags.whole("repetitions")), flags.number("repetition-ms"),
          static_cast<int>(flags.whole("warmup")), flags.number("cell-ms")};
}

/// In gloo_kinds.cc.
bool is_gloo_kind(const std::string& name);
void run_gloo_kind(const Flags& flags, ForkTeam& team, const std::string& folder);

}  // namespace tutti::benchmarks
