#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <string>

#include "benchmarks/common/flags.h"
#include "benchmarks/common/fork_team.h"
#include "benchmarks/common/measure.h"

namespace tutti::benchmarks {

using ContextPtr = std::shared_ptr<gloo::rendezvous::Context>;

/// Connects all ranks of the team over TCP. `address` is this rank's.
inline ContextPtr connect_gloo(const std::string& address, const ForkTeam& team,
                               const std::string& folder) {
  gloo::transport::tcp::attr own;
  own.hostname = address;
  auto device = gloo::transport::tcp::CreateDevice(own);
  auto context = std::make_shared<gloo::rendezvous::Context>(team.rank(), team.size());
  gloo::rendezvous::FileStore store(folder);
  context->connectFullMesh(store, device);
  return context;
}
/// Connects them at the addresses in the flag `hosts`, or over loopback without that flag.
ContextPtr connect_gloo(const Flags& flags, const ForkTeam& team, const std::string& folder);

/// In gloo_kinds.cc.
bool is_gloo_kind(const std::string& name);
void run_gloo_kind(const Flags& flags, ForkTeam& team, const std::string& folder);

}  // namespace tutti::benchmarks
