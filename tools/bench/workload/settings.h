#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::bench {

/// Which of the library's calls a case measures.
enum class Way : uint8_t {
  blocking,        // Communicator::*_blocking on a view that was made before
  vector,          // the same on a std::vector, whose view is made by each call
  named,           // asynchronous calls by name, then Work::wait
  declared,        // the same by handles of Communicator::declare
  grouped,         // one grouped_allreduce
  arena,           // GradientArena: ready() of each array, then wait()
  arena_blocking,  // Communicator::*_blocking on a GradientArena's memory
  region,          // the same on memory of Communicator::allocate, for input and output
  replayed,        // by handles, once the plan is locked: fails if it is not
};
inline constexpr int kWayCount = 9;

constexpr std::string_view to_string(Way way) noexcept {
  constexpr std::string_view kNames[kWayCount] = {"blocking",       "vector",  "named",
                                                  "declared",       "grouped", "arena",
                                                  "arena_blocking", "region",  "replayed"};
  return kNames[static_cast<int>(way)];
}

enum class Placement : uint8_t { both, in_place, out_of_place };

/// What the user asked for.
struct Settings {
  std::string case_name;
  int ranks = 0;        // 0: not said
  std::string backend;  // empty: as the environment says
  bool pin = false;
  std::string json, csv, plot;  // files; "-" is standard output; empty: none
  std::string sample_file;      // `create` only: where a child leaves its figure

  std::vector<int64_t> bytes;
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::optional<Way> way;  // none: the case's first
  Placement placement = Placement::both;

  std::string set = "resnet50";
  int64_t elements = 0;  // of each tensor of a set; 0: its own number
  double backward_ms = 50;
  int64_t steps = 1000;
  int64_t calls = 20'000;
  bool polled = false;

  int warmup = 5;
  int repetitions = 11;
  int64_t iterations = 0;  // 0: as many as fill repetition_ms
  double repetition_ms = 20;
};

}  // namespace tutti::bench
