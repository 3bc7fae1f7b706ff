#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/run/child.h"

namespace tutti::run {

/// Returns the cores of local rank `rank` if `size` ranks share `cores`. A share is consecutive
/// cores, and each core is in one share. With fewer cores than ranks, each rank gets one core, in
/// turn.
std::vector<int> share_of_cores(std::span<const int> cores, int rank, int size);

/// Gives the program its share of this host. It binds the program to its cores if `bind`. If
/// OMP_NUM_THREADS is not set, the function sets it to the number of these cores. Otherwise OpenMP
/// would start one thread per core of the host in each rank. The rank's share follows from
/// TUTTI_LOCAL_RANK and TUTTI_LOCAL_SIZE. Returns true if it set OMP_NUM_THREADS.
bool give_share(Command& command, bool bind);
/// Returns the launcher's line about the OMP_NUM_THREADS that it set.
std::string threads_text(const Command& command);

}  // namespace tutti::run
