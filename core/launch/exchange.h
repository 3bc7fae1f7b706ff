#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"
#include "tutti/base/private_folder.h"

namespace tutti {

/// Ways in which rank 0 sends one short line (no blanks) to all other ranks through their launcher,
/// before they have connections. All ranks call each of these functions, and all get rank 0's
/// `text`.

/// The client side of a PMIx server (Open MPI's mpirun, srun --mpi=pmix). It uses the machine's own
/// libpmix, loaded when the process needs it. The destructor finalizes it, so that the launcher
/// sees an orderly end. Only one may exist at a time.
class PmixClient {
 public:
  /// Throws Error(unavailable) if libpmix is not there or no server answers.
  PmixClient();
  ~PmixClient();
  PmixClient(const PmixClient&) = delete;

  int rank() const;
  int size() const;        // of the job
  int local_rank() const;  // on this node
  int local_size() const;
  /// Throws Error(timeout) if not all ranks arrived before the deadline.
  std::string share(std::string_view text, Deadline deadline);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// Does this over the PMI-1 text protocol, on a socket that the launcher left open (MPICH's and
/// Intel's mpiexec, srun --mpi=pmi2). It works only once in a process's life: it ends with the
/// protocol's finalize, so that the launcher sees an orderly end. Throws Error(timeout |
/// unavailable | corrupt_data).
std::string share_over_pmi(int descriptor, int rank, std::string_view text, Deadline deadline);

/// A file that only its user can read. The destructor removes it.
class PrivateFile {
 public:
  /// Writes the file whole or not at all, and replaces one that a crashed job may have left under
  /// the name. Makes the folder if it is missing. Throws what PrivateFolder does.
  PrivateFile(const std::string& folder, const std::string& name, std::string_view text);
  ~PrivateFile();
  PrivateFile(const PrivateFile&) = delete;

 private:
  const PrivateFolder folder_;
  const std::string name_;
};

/// Waits for a PrivateFile of this user and returns its text. Throws Error(timeout) and what
/// PrivateFolder does: Error(authentication) if another user could have written it.
std::string read_private_file(const std::string& folder, const std::string& name,
                              Deadline deadline);

}  // namespace tutti
