#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/simulation/world/sim_memory.h"
#include "tests/simulation/world/stream_net.h"

namespace tutti::simulation {

class MemoryBackend;

/// The network of the shared tier: the links of a StreamNet, and memory that all ranks reach. The
/// backend over it is the shipped one, with its queues of chunks and its pairs. A Geometry with
/// small numbers cuts small tensors into many chunks.
///
/// A rank that has armed its backend is woken by its links, or by a peer that rings it. If it could
/// go on in shared memory although no peer rang it, that is a broken promise.
class SharedNet final : public StreamNet {
 public:
  SharedNet(Events& events, const World& world);
  ~SharedNet() override;
  bool is_written_late(int rank) const override { return memory_.is_written_late(rank); }

 private:
  friend class MemoryBackend;
  std::unique_ptr<Backend> over(int rank, const Context& context, std::unique_ptr<Backend> rest,
                                const EndHooks& hooks) override;
  void ring(int rank);

  const World& world_;
  const Geometry geometry_;
  SimShared memory_;
  std::vector<MemoryBackend*> ends_;
};

}  // namespace tutti::simulation
