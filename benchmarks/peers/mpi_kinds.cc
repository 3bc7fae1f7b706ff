// Measures all collectives of an MPI library except allreduce.
#include <mpi.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "benchmarks/common/data.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/peers/mpi_team.h"

namespace tutti::benchmarks {

namespace {

constexpr int kRoot = 0;

/// The buffers of a rank for one size. `count` elements are one rank's part of `total`.
struct Exercise {
  int rank = 0, ranks = 1;
  int64_t total = 0, count = 0;
  float* input = nullptr;
  float* output = nullptr;

  int whole() const { return static_cast<int>(total); }
  int part() const { return static_cast<int>(count); }
  int next() const { return (rank + 1) % ranks; }
  int before() const { return (rank + ranks - 1) % ranks; }
};

struct Kind {
  bool is_dealt;  // true: the buffer consists of all ranks' parts; false: each rank has all of it
  std::function<void(const Exercise&)> call;
  /// Returns how many elements are wrong after a call.
  std::function<int64_t(const Exercise&)> count_wrong;
};

int64_t differ(const float* data, const float* wanted, int64_t count) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong += data[i] != wanted[i];
  return wrong;
}

// Returns a buffer that holds the pattern from its beginning. Each rank's input is its own pattern.
Buffer filled(const Pattern& pattern, int64_t count) {
  auto buffer = make_buffer(count);
  pattern.fill(buffer.get(), count);
  return buffer;
}

int64_t wrong_joined(const Exercise& e) {
  int64_t wrong = 0;
  for (int rank = 0; rank < e.ranks; ++rank)
    wrong += Pattern::of_rank(rank).count_wrong(e.output + rank * e.count, e.count);
  return wrong;
}

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> all = {
      {"allgather",
       {true,
        [](auto& e) {
          MPI_Allgather(e.input, e.part(), MPI_FLOAT, e.output, e.part(), MPI_FLOAT,
                        MPI_COMM_WORLD);
        },
        wrong_joined}},
      {"gather",
       {true,
        [](auto& e) {
          MPI_Gather(e.input, e.part(), MPI_FLOAT, e.output, e.part(), MPI_FLOAT, kRoot,
                     MPI_COMM_WORLD);
        },
        [](auto& e) { return e.rank == kRoot ? wrong_joined(e) : 0; }}},
      {"scatter",
       {true,
        [](auto& e) {
          MPI_Scatter(e.input, e.part(), MPI_FLOAT, e.output, e.part(), MPI_FLOAT, kRoot,
                      MPI_COMM_WORLD);
        },
        [](auto& e) {
          const auto all = filled(Pattern::of_rank(kRoot), e.total);
          return differ(e.output, all.get() + e.rank * e.count, e.count);
        }}},
      {"alltoall",
       {true,
        [](auto& e) {
          MPI_Alltoall(e.input, e.part(), MPI_FLOAT, e.output, e.part(), MPI_FLOAT, MPI_COMM_WORLD);
        },
        [](auto& e) {
          int64_t wrong = 0;
          for (int rank = 0; rank < e.ranks; ++rank) {
            const auto all = filled(Pattern::of_rank(rank), e.total);
            wrong += differ(e.output + rank * e.count, all.get() + e.rank * e.count, e.count);
          }
          return wrong;
        }}},
      {"reduce_scatter",
       {true,
        [](auto& e) {
          MPI_Reduce_scatter_block(e.input, e.output, e.part(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        },
        [](auto& e) {
          const auto all = filled(Pattern::reduced(e.ranks), e.total);
          return differ(e.output, all.get() + e.rank * e.count, e.count);
        }}},
      {"reduce",
       {false,
        [](auto& e) {
          MPI_Reduce(e.input, e.output, e.whole(), MPI_FLOAT, MPI_SUM, kRoot, MPI_COMM_WORLD);
        },
        [](auto& e) {
          return e.rank == kRoot ? Pattern::reduced(e.ranks).count_wrong(e.output, e.total) : 0;
        }}},
      {"broadcast",
       {false, [](auto& e) { MPI_Bcast(e.input, e.whole(), MPI_FLOAT, kRoot, MPI_COMM_WORLD); },
        [](auto& e) { return Pattern::of_rank(kRoot).count_wrong(e.input, e.total); }}},
      {"sendrecv",
       {false,
        [](auto& e) {
          MPI_Sendrecv(e.input, e.whole(), MPI_FLOAT, e.next(), 0, e.output, e.whole(), MPI_FLOAT,
                       e.before(), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        },
        [](auto& e) { return Pattern::of_rank(e.before()).count_wrong(e.output, e.total); }}},
  };
  return all;
}

}  // namespace

bool is_kind(const std::string& name) { return kinds().contains(name); }

void run_kind(const Flags& flags, MpiTeam& team) {
  const auto& kind = kinds().at(flags.case_name());
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor"))) {
    Exercise exercise{.rank = team.rank(), .ranks = team.size()};
    exercise.count = std::max<int64_t>(1, bytes / 4 / (kind.is_dealt ? team.size() : 1));
    exercise.total = kind.is_dealt ? exercise.count * team.size() : exercise.count;
    const auto input = make_buffer(exercise.total), output = make_buffer(exercise.total);
    exercise.input = input.get();
    exercise.output = output.get();
    const auto fill = [&] { Pattern::of_rank(team.rank()).fill(input.get(), exercise.total); };
    const auto call = [&] { kind.call(exercise); };
    auto row = row_of(flags, team);
    row.in_place = flags.case_name() == "broadcast";
    row.bytes = exercise.total * 4;
    row.timing = measure(team, method_of(flags), kNeverOverflows, fill, call);
    fill();
    call();
    row.wrong = team.sum(kind.count_wrong(exercise));
    if (team.rank() == 0) print(row);
  }
}

}  // namespace tutti::benchmarks
