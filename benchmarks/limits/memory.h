#pragma once

#include "benchmarks/common/flags.h"
#include "benchmarks/common/fork_team.h"

namespace tutti::benchmarks {

class SharedMemory;

/// Measures the least work of an allreduce in shared memory: each of two processes adds one half of
/// two mapped buffers and writes it into both. `shared` must be mapped before the ranks are forked.
void run_mapped_add(const Flags& flags, ForkTeam& team, SharedMemory& shared);
/// Measures the time of a flag from core to core, and the speed that the second core adds. They
/// show where the host has placed the virtual cores.
void run_probe(const Flags& flags, ForkTeam& team, SharedMemory& shared);

/// Memory that all ranks share. All of its pages have been touched.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  char* data() const { return data_; }

 private:
  size_t bytes_;
  char* data_;
};

}  // namespace tutti::benchmarks
