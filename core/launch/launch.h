#pragma once

#include <map>
#include <string>

namespace tutti {

/// A process's environment as a value. core/settings/options.cc reads the real one; tests make
/// their own.
using Environment = std::map<std::string, std::string>;

/// How rank 0's address and the job's secret reach the other ranks.
enum class Meeting {
  none,     // one rank
  given,    // TUTTI_STORE names the store
  address,  // rank 0 serves the store at LauncherInfo::host and LauncherInfo::port, which all ranks
            // know
  pmix,     // rank 0 serves it anywhere and sends the address by the launcher's PMIx server
  pmi,      // the same by the PMI-1 protocol on LauncherInfo::pmi_descriptor
  file      // the same by a file in the user's home folder named LauncherInfo::file
};

/// A process's rank, size and meeting, as its launcher gives them.
struct LauncherInfo {
  std::string launcher = "none";  // "tutti-run", "Open MPI" ...
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;  // if it equals size, rank 0 serves on loopback only
  Meeting meeting = Meeting::none;
  std::string host;  // Meeting::address
  int port = 0;
  int pmi_descriptor = -1;  // Meeting::pmi
  std::string file;         // Meeting::file
  /// Distinguishes jobs if the launcher has no channel for a random secret. A process that sees the
  /// job's environment can guess it, so it protects from mistakes but not from attackers.
  std::string public_secret;
  /// Only the PMIx server knows the sizes, so it must be asked.
  bool sizes_from_pmix = false;
  /// The variable that each value came from: "TUTTI_RANK" -> "OMPI_COMM_WORLD_RANK".
  std::map<std::string, std::string> sources;
};

/// Finds the launcher of this process by its family of variables. Only the first family that is set
/// counts, because inner launchers do not remove the variables of outer ones. The order is
/// TUTTI_RANK (tutti-run), torchrun, Open MPI, PMIx, PMI (MPICH, Intel MPI, srun --mpi=pmi2), a
/// Slurm step. Without any there is one rank. Throws Error(invalid_argument) for an incomplete
/// family, naming the missing variable, and for values that are not numbers or disagree.
LauncherInfo detect_launcher(const Environment& environment);

}  // namespace tutti
