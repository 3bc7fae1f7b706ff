#pragma once

#include "benchmarks/common/flags.h"
#include "benchmarks/common/fork_team.h"

namespace tutti::benchmarks {

class SharedMemory;

/// Two processes that map both buffers; each adds one half and writes it into both: the least that
/// an allreduce in shared memory can do. `shared` was mapped before the ranks were forked.
void run_mapped_add(const Flags& flags, ForkTeam& team, SharedMemory& shared);
/// How long a flag takes from core to core, and what the second core adds: where the host has put
/// the virtual cores.
void run_probe(const Flags& flags, ForkTeam& team, SharedMemory& shared);

/// Memory that all ranks share, every page of it touched.
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
