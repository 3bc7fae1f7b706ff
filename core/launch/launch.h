#pragma once

#include <map>
#include <string>

namespace tutti {

/// The environment of a process, as a value. core/settings/options.cc reads the real one. Tests
/// make their own.
using Environment = std::map<std::string, std::string>;

/// The channel through which rank 0's address and the job's secret reach the other ranks.
enum class Meeting {
  none,     // there is only one rank
  given,    // TUTTI_STORE names the store
  address,  // rank 0 serves the store at LauncherInfo::host and port, known to all ranks
  pmix,     // rank 0 serves the store anywhere and sends its address through the PMIx server
  pmi,      // like pmix, but through the PMI-1 protocol on LauncherInfo::pmi_descriptor
  file      // like pmix, but through the file LauncherInfo::file in the user's home folder
};

/// The rank and the size of a process, and how it meets the other ranks, as its launcher provides
/// them.
struct LauncherInfo {
  std::string launcher = "none";  // "tutti-run", "Open MPI" ...
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;  // if equal to size, rank 0 serves on loopback only
  Meeting meeting = Meeting::none;
  std::string host;  // used with Meeting::address
  int port = 0;
  int pmi_descriptor = -1;  // used with Meeting::pmi
  std::string file;         // used with Meeting::file
  /// A secret that only distinguishes jobs. It is for launchers without a channel for a random
  /// secret. Any process that sees the job's environment can guess this secret. So it protects from
  /// mistakes but not from attackers.
  std::string public_secret;
  /// True if no variable has the sizes, so that they must be requested from the PMIx server.
  bool sizes_from_pmix = false;
  /// Maps each value to the variable from which it was read: "TUTTI_RANK" ->
  /// "OMPI_COMM_WORLD_RANK".
  std::map<std::string, std::string> sources;
};

/// Finds the launcher of this process. Each launcher sets its own group of variables. Only the
/// first group that is set counts, because inner launchers do not remove the variables of outer
/// ones. The order is TUTTI_RANK (tutti-run), torchrun, Open MPI, PMIx, PMI (MPICH, Intel MPI, srun
/// --mpi=pmi2), a Slurm step. If no group is set, there is one rank. Throws Error(invalid_argument)
/// for an incomplete group, naming the missing variable, and for values that are not numbers or
/// contradict each other.
LauncherInfo detect_launcher(const Environment& environment);

}  // namespace tutti
