#pragma once

#include <mpi.h>

#include <cstdint>

#include "benchmarks/common/flags.h"
#include "benchmarks/common/measure.h"
#include "benchmarks/common/row.h"

namespace tutti::benchmarks {

#ifdef OPEN_MPI
inline constexpr const char* kMpiProgram = "openmpi";
#else
inline constexpr const char* kMpiProgram = "mpich";
#endif

/// All ranks of MPI_COMM_WORLD, with the functions that measure() needs.
class MpiTeam {
 public:
  MpiTeam() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const { return rank_; }
  int size() const { return size_; }
  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
  double max(double value) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return value;
  }
  int64_t sum(int64_t value) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    return value;
  }

 private:
  int rank_ = 0, size_ = 1;
};

inline Row row_of(const Flags& flags, const MpiTeam& team) {
  Row row{.program = kMpiProgram, .case_name = flags.case_name(), .way = "blocking"};
  row.ranks = team.size();
  row.transport = "shm";
  row.words["variant"] = flags.text("variant");
  return row;
}

/// Returns whether run_kind() has this case.
bool is_kind(const std::string& name);
/// Runs a collective other than allreduce, or sendrecv, for each size in --bytes. The size is that
/// of the whole buffer, as in tutti-bench. All but broadcast run out of place.
void run_kind(const Flags& flags, MpiTeam& team);

}  // namespace tutti::benchmarks
