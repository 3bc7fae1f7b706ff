#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/simulation/world/sim_memory.h"
#include "tests/simulation/world/stream_net.h"

namespace tutti::simulation {

class MemoryBackend;

/// The ranks of the shared tier have the links of a StreamNet between them, and memory that all
/// reach. The backend over it is the shipped one, with its queues of chunks and its pairs. A
/// Geometry of small numbers cuts small tensors into many chunks.
///
/// A rank that has armed is woken by its links, and by a peer that rings it. What it could do in
/// shared memory although nobody has rung it is a broken promise.
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
