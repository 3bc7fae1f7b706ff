#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "benchmarks/common/data.h"
#include "benchmarks/common/flags.h"
#include "benchmarks/common/measure.h"
#include "benchmarks/common/row.h"
#include "benchmarks/common/sizes.h"

// The peers' measurement of collectives other than allreduce: the buffers, the checks of the
// results and the loop over sizes. Each peer adds its calls.

namespace tutti::benchmarks {

inline constexpr int kRoot = 0;

/// The buffers of a rank for one size. `count` elements are one rank's part of `total`.
struct Exercise {
  int rank = 0, ranks = 1;
  int64_t total = 0, count = 0;
  float* input = nullptr;
  float* output = nullptr;

  int before() const { return (rank + ranks - 1) % ranks; }
  int next() const { return (rank + 1) % ranks; }
};

struct Kind {
  bool is_dealt;  // true: the buffer consists of all ranks' parts; false: each rank has all of it
  /// Returns how many elements are wrong after a call.
  std::function<int64_t(const Exercise&)> count_wrong;
};

inline int64_t wrong_joined(const Exercise& e) {
  int64_t wrong = 0;
  for (int rank = 0; rank < e.ranks; ++rank)
    wrong += Pattern::of_rank(rank).count_wrong(e.output + rank * e.count, e.count);
  return wrong;
}

/// Compares `data` with this rank's part of a buffer of `pattern`.
inline int64_t wrong_part(const Exercise& e, const Pattern& pattern, const float* data) {
  const auto all = make_buffer(e.total);
  pattern.fill(all.get(), e.total);
  int64_t wrong = 0;
  for (int64_t i = 0; i < e.count; ++i) wrong += data[i] != all[e.rank * e.count + i];
  return wrong;
}

inline const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> all = {
      {"allgather", {true, wrong_joined}},
      {"gather",
       {true, [](const Exercise& e) { return e.rank == kRoot ? wrong_joined(e) : int64_t{0}; }}},
      {"scatter",
       {true, [](const Exercise& e) { return wrong_part(e, Pattern::of_rank(kRoot), e.output); }}},
      {"alltoall",
       {true,
        [](const Exercise& e) {
          int64_t wrong = 0;
          for (int rank = 0; rank < e.ranks; ++rank)
            wrong += wrong_part(e, Pattern::of_rank(rank), e.output + rank * e.count);
          return wrong;
        }}},
      {"reduce_scatter",
       {true,
        [](const Exercise& e) { return wrong_part(e, Pattern::reduced(e.ranks), e.output); }}},
      {"reduce",
       {false,
        [](const Exercise& e) {
          return e.rank == kRoot ? Pattern::reduced(e.ranks).count_wrong(e.output, e.total)
                                 : int64_t{0};
        }}},
      {"broadcast",
       {false,
        [](const Exercise& e) { return Pattern::of_rank(kRoot).count_wrong(e.input, e.total); }}},
      {"sendrecv",
       {false,
        [](const Exercise& e) {
          return Pattern::of_rank(e.before()).count_wrong(e.output, e.total);
        }}},
  };
  return all;
}

/// Prepares the calls of one size.
using MakeCall = std::function<std::function<void()>(const Exercise&)>;

/// Measures the case of the flags for each size in --bytes. The size is that of the whole buffer,
/// as in tutti-bench. `row` has the peer's own fields. If `in_place`, a call works in the output,
/// which begins as a copy of the input. Otherwise all calls but broadcast run out of place.
template <class Team>
void run_sizes(const Flags& flags, Team& team, Row row, const MakeCall& make, bool in_place) {
  const auto& kind = kinds().at(flags.case_name());
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor"))) {
    Exercise exercise{.rank = team.rank(), .ranks = team.size()};
    exercise.count = std::max<int64_t>(1, bytes / 4 / (kind.is_dealt ? team.size() : 1));
    exercise.total = kind.is_dealt ? exercise.count * team.size() : exercise.count;
    const auto input = make_buffer(exercise.total), output = make_buffer(exercise.total);
    exercise.input = input.get();
    exercise.output = output.get();
    const auto fill = [&] {
      Pattern::of_rank(team.rank()).fill(input.get(), exercise.total);
      if (in_place) std::copy_n(input.get(), exercise.total, output.get());
    };
    fill();
    const auto call = make(exercise);
    row.in_place = in_place || flags.case_name() == "broadcast";
    row.bytes = exercise.total * 4;
    row.timing =
        measure(team, method_of(flags),
                in_place ? calls_before_overflow(team.size()) : kNeverOverflows, fill, call);
    fill();
    call();
    row.wrong = team.sum(kind.count_wrong(exercise));
    if (team.rank() == 0) print(row);
  }
}

}  // namespace tutti::benchmarks
