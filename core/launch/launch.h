#pragma once

#include <map>
#include <string>

namespace tutti {

/// A process's environment as a value. core/settings/options.cc reads the real one; tests make
/// their own.
using Environment = std::map<std::string, std::string>;

/// How rank 0's address and the job's secret get to the other ranks.
enum class Meeting {
  none,     // one rank
  given,    // TUTTI_STORE says where
  address,  // rank 0 serves the store at LauncherInfo::host and LauncherInfo::port, which all ranks
            // know
  pmix,     // rank 0 serves it anywhere and tells by the launcher's PMIx server
  pmi,      // the same by the PMI-1 protocol on LauncherInfo::pmi_descriptor
  file      // the same by a file in the user's home folder named LauncherInfo::file
};

/// What a launcher says of this process.
struct LauncherInfo {
  std::string launcher = "none";  // "tutti-run", "Open MPI" ...
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;  // of these, `size` is what decides whether rank 0 serves on loopback only
  Meeting meeting = Meeting::none;
  std::string host;  // Meeting::address
  int port = 0;
  int pmi_descriptor = -1;  // Meeting::pmi
  std::string file;         // Meeting::file
  /// Tells one job from another where the launcher has no channel for a random secret. A process
  /// that sees the job's environment can guess it: it keeps strangers' mistakes out, not attackers.
  std::string public_secret;
  /// PMIx has the sizes only in its server: ask there.
  bool sizes_from_pmix = false;
  /// Which variable said it: "TUTTI_RANK" -> "OMPI_COMM_WORLD_RANK".
  std::map<std::string, std::string> sources;
};

/// Finds the launcher of this process. The first family that is there counts, and only it, since
/// inner launchers leave the variables of the outer ones standing: TUTTI_RANK (tutti-run),
/// torchrun, Open MPI, PMIx, PMI (MPICH, Intel MPI, srun --mpi=pmi2), a Slurm step; else one rank.
/// Throws Error(invalid_argument) for a family that is there in part, naming the missing variable,
/// and for numbers that are none or disagree.
LauncherInfo detect_launcher(const Environment& environment);

}  // namespace tutti
