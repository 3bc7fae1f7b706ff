// Measures all collectives of Gloo except allreduce, over TCP.
#include <gloo/allgather.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/scatter.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/common/data.h"
#include "benchmarks/common/row.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/peers/gloo_team.h"

namespace tutti::benchmarks {

namespace {

constexpr int kRoot = 0;

/// The buffers of a rank for one size. `count` elements are one rank's part of `total`.
struct Exercise {
  ContextPtr context;
  int rank = 0, ranks = 1;
  int64_t total = 0, count = 0;
  float* input = nullptr;
  float* output = nullptr;

  size_t whole() const { return static_cast<size_t>(total); }
  size_t part() const { return static_cast<size_t>(count); }
};

using Sum = void (*)(void*, const void*, const void*, size_t);
constexpr Sum kSum = &gloo::sum<float>;

struct Kind {
  bool is_dealt;  // true: the buffer consists of all ranks' parts; false: each rank has all of it
  std::function<std::function<void()>(const Exercise&)> make;
  /// Returns how many elements are wrong after a call.
  std::function<int64_t(const Exercise&)> count_wrong;
};

int64_t wrong_joined(const Exercise& e) {
  int64_t wrong = 0;
  for (int rank = 0; rank < e.ranks; ++rank)
    wrong += Pattern::of_rank(rank).count_wrong(e.output + rank * e.count, e.count);
  return wrong;
}

// Compares `data` with this rank's part of a buffer of `pattern`.
int64_t wrong_part(const Exercise& e, const Pattern& pattern, const float* data) {
  const auto all = make_buffer(e.total);
  pattern.fill(all.get(), e.total);
  int64_t wrong = 0;
  for (int64_t i = 0; i < e.count; ++i) wrong += data[i] != all[e.rank * e.count + i];
  return wrong;
}

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> all = {
      {"allgather",
       {true,
        [](const Exercise& e) {
          auto options = std::make_shared<gloo::AllgatherOptions>(e.context);
          options->setInput(e.input, e.part());
          options->setOutput(e.output, e.whole());
          return [options] { gloo::allgather(*options); };
        },
        wrong_joined}},
      {"gather",
       {true,
        [](const Exercise& e) {
          auto options = std::make_shared<gloo::GatherOptions>(e.context);
          options->setInput(e.input, e.part());
          if (e.rank == kRoot) options->setOutput(e.output, e.whole());
          options->setRoot(kRoot);
          return [options] { gloo::gather(*options); };
        },
        [](const Exercise& e) { return e.rank == kRoot ? wrong_joined(e) : 0; }}},
      {"scatter",
       {true,
        [](const Exercise& e) {
          auto options = std::make_shared<gloo::ScatterOptions>(e.context);
          std::vector<float*> parts;
          for (int rank = 0; rank < e.ranks; ++rank) parts.push_back(e.input + rank * e.count);
          if (e.rank == kRoot) options->setInputs(parts, e.part());
          options->setOutput(e.output, e.part());
          options->setRoot(kRoot);
          return [options] { gloo::scatter(*options); };
        },
        [](const Exercise& e) { return wrong_part(e, Pattern::of_rank(kRoot), e.output); }}},
      {"alltoall",
       {true,
        [](const Exercise& e) {
          auto options = std::make_shared<gloo::AlltoallOptions>(e.context);
          options->setInput(e.input, e.whole());
          options->setOutput(e.output, e.whole());
          return [options] { gloo::alltoall(*options); };
        },
        [](const Exercise& e) {
          int64_t wrong = 0;
          for (int rank = 0; rank < e.ranks; ++rank)
            wrong += wrong_part(e, Pattern::of_rank(rank), e.output + rank * e.count);
          return wrong;
        }}},
      // Gloo's only reduce_scatter works in place, and its result is at the beginning of the
      // buffer.
      {"reduce_scatter",
       {true,
        [](const Exercise& e) {
          using Algorithm = gloo::ReduceScatterHalvingDoubling<float>;
          std::copy_n(e.input, e.total, e.output);
          auto algorithm = std::make_shared<Algorithm>(
              e.context, std::vector<float*>{e.output}, static_cast<int>(e.total),
              std::vector<int>(static_cast<size_t>(e.ranks), static_cast<int>(e.count)));
          return [algorithm] { algorithm->run(); };
        },
        [](const Exercise& e) { return wrong_part(e, Pattern::reduced(e.ranks), e.output); }}},
      {"reduce",
       {false,
        [](const Exercise& e) {
          auto options = std::make_shared<gloo::ReduceOptions>(e.context);
          options->setInput(e.input, e.whole());
          options->setOutput(e.output, e.whole());
          options->setRoot(kRoot);
          options->setReduceFunction(kSum);
          return [options] { gloo::reduce(*options); };
        },
        [](const Exercise& e) {
          return e.rank == kRoot ? Pattern::reduced(e.ranks).count_wrong(e.output, e.total) : 0;
        }}},
      {"broadcast",
       {false,
        [](const Exercise& e) {
          auto options = std::make_shared<gloo::BroadcastOptions>(e.context);
          options->setOutput(e.input, e.whole());
          options->setRoot(kRoot);
          return [options] { gloo::broadcast(*options); };
        },
        [](const Exercise& e) { return Pattern::of_rank(kRoot).count_wrong(e.input, e.total); }}},
  };
  return all;
}

}  // namespace

bool is_gloo_kind(const std::string& name) { return kinds().contains(name); }

void run_gloo_kind(const Flags& flags, ForkTeam& team, const std::string& folder) {
  const auto& kind = kinds().at(flags.case_name());
  const auto context = connect_gloo(flags, team, folder);
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor"))) {
    Exercise exercise{.context = context, .rank = team.rank(), .ranks = team.size()};
    exercise.count = std::max<int64_t>(1, bytes / 4 / (kind.is_dealt ? team.size() : 1));
    exercise.total = kind.is_dealt ? exercise.count * team.size() : exercise.count;
    const auto input = make_buffer(exercise.total), output = make_buffer(exercise.total);
    exercise.input = input.get();
    exercise.output = output.get();
    const bool in_place = flags.case_name() == "reduce_scatter";
    const auto fill = [&] {
      Pattern::of_rank(team.rank()).fill(input.get(), exercise.total);
      if (in_place) std::copy_n(input.get(), exercise.total, output.get());
    };
    fill();
    const auto call = kind.make(exercise);
    Row row{.program = "gloo", .case_name = flags.case_name(), .way = flags.case_name()};
    row.in_place = in_place || flags.case_name() == "broadcast";
    row.bytes = exercise.total * 4;
    row.ranks = team.size();
    row.transport = "tcp";
    row.words["variant"] = flags.text("variant");
    row.timing =
        measure(team, gloo_method(flags),
                in_place ? calls_before_overflow(team.size()) : kNeverOverflows, fill, call);
    fill();
    call();
    row.wrong = team.sum(kind.count_wrong(exercise));
    if (team.rank() == 0) print(row);
  }
}

}  // namespace tutti::benchmarks
