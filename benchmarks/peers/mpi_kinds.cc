// Measures all collectives of an MPI library except allreduce.
#include "benchmarks/peers/kinds.h"
#include "benchmarks/peers/mpi_team.h"

namespace tutti::benchmarks {

namespace {

using Call = void (*)(const Exercise&, int total, int part);

const std::map<std::string, Call>& calls() {
  static const std::map<std::string, Call> all = {
      {"allgather",
       [](auto& e, int, int part) {
         MPI_Allgather(e.input, part, MPI_FLOAT, e.output, part, MPI_FLOAT, MPI_COMM_WORLD);
       }},
      {"gather",
       [](auto& e, int, int part) {
         MPI_Gather(e.input, part, MPI_FLOAT, e.output, part, MPI_FLOAT, kRoot, MPI_COMM_WORLD);
       }},
      {"scatter",
       [](auto& e, int, int part) {
         MPI_Scatter(e.input, part, MPI_FLOAT, e.output, part, MPI_FLOAT, kRoot, MPI_COMM_WORLD);
       }},
      {"alltoall",
       [](auto& e, int, int part) {
         MPI_Alltoall(e.input, part, MPI_FLOAT, e.output, part, MPI_FLOAT, MPI_COMM_WORLD);
       }},
      {"reduce_scatter",
       [](auto& e, int, int part) {
         MPI_Reduce_scatter_block(e.input, e.output, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
       }},
      {"reduce",
       [](auto& e, int total, int) {
         MPI_Reduce(e.input, e.output, total, MPI_FLOAT, MPI_SUM, kRoot, MPI_COMM_WORLD);
       }},
      {"broadcast", [](auto& e, int total,
                       int) { MPI_Bcast(e.input, total, MPI_FLOAT, kRoot, MPI_COMM_WORLD); }},
      {"sendrecv",
       [](auto& e, int total, int) {
         MPI_Sendrecv(e.input, total, MPI_FLOAT, e.next(), 0, e.output, total, MPI_FLOAT,
                      e.before(), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
       }},
  };
  return all;
}

}  // namespace

bool is_kind(const std::string& name) { return calls().contains(name); }

void run_kind(const Flags& flags, MpiTeam& team) {
  const auto call = calls().at(flags.case_name());
  const auto make = [call](const Exercise& e) {
    return [&e, call] { call(e, static_cast<int>(e.total), static_cast<int>(e.count)); };
  };
  run_sizes(flags, team, row_of(flags, team), make, false);
}

}  // namespace tutti::benchmarks
