#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"
#include "tutti/base/private_folder.h"

namespace tutti {

/// Functions by which rank 0 sends one short line (without blanks) to all other ranks before they
/// are connected. The line goes through their launcher. All ranks must call the same function, and
/// all get the `text` of rank 0.

/// The client side of a PMIx server (Open MPI's mpirun, srun --mpi=pmix). It uses the machine's
/// libpmix, which is loaded when needed. The destructor finalizes it, so that the launcher sees an
/// orderly end. Only one such object may exist at a time.
class PmixClient {
 public:
  /// Throws Error(unavailable) if libpmix is missing or no server answers.
  PmixClient();
  ~PmixClient();
  PmixClient(const PmixClient&) = delete;

  int rank() const;
  int size() const;        // number of ranks in the job
  int local_rank() const;  // rank among the ranks of this node
  int local_size() const;
  /// Sends rank 0's `text` to all ranks. Throws Error(timeout) if not all ranks called it before
  /// the deadline.
  std::string share(std::string_view text, Deadline deadline);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// Sends rank 0's `text` over the PMI-1 text protocol, on a socket that the launcher left open
/// (mpiexec of MPICH and Intel MPI, srun --mpi=pmi2). It works only once per process, because it
/// ends with the protocol's finalize, so that the launcher sees an orderly end. Throws
/// Error(timeout | unavailable | corrupt_data).
std::string share_over_pmi(int descriptor, int rank, std::string_view text, Deadline deadline);

/// A file that only its user can read. The destructor removes it.
class PrivateFile {
 public:
  /// Writes the file completely or not at all. Replaces a file of this name that a crashed job may
  /// have left. Makes the folder if it is missing. Throws the errors of PrivateFolder.
  PrivateFile(const std::string& folder, const std::string& name, std::string_view text);
  ~PrivateFile();
  PrivateFile(const PrivateFile&) = delete;

 private:
  const PrivateFolder folder_;
  const std::string name_;
};

/// Waits for a PrivateFile of this user and returns its text. Throws Error(timeout) and the errors
/// of PrivateFolder: Error(authentication) if another user could have written the file.
std::string read_private_file(const std::string& folder, const std::string& name,
                              Deadline deadline);

}  // namespace tutti
