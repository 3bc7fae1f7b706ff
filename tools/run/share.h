#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/run/child.h"

namespace tutti::run {

/// The cores of local rank `rank` of `size`, if they share `cores`: neighbours, each core in one
/// share; where there are fewer cores than ranks, one each, in turn. Pure.
std::vector<int> share_of_cores(std::span<const int> cores, int rank, int size);

/// Gives the program its share of this host: its cores, if `bind`, and, where OMP_NUM_THREADS is
/// not set, as many threads of OpenMP as its share has cores, since otherwise each rank starts one
/// for each core of the host. Its place is in TUTTI_LOCAL_RANK and TUTTI_LOCAL_SIZE. True if it set
/// OMP_NUM_THREADS.
bool give_share(Command& command, bool bind);
/// The launcher's line about the OMP_NUM_THREADS that it set.
std::string threads_text(const Command& command);

}  // namespace tutti::run
