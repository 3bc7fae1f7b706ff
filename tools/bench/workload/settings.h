#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::bench {

/// The calls of the library that a case measures.
enum class Way : uint8_t {
  blocking,        // Communicator::*_blocking on an existing view
  vector,          // Communicator::*_blocking on a std::vector; each call makes its view
  named,           // asynchronous calls by name, then Work::wait
  declared,        // asynchronous calls by handles of Communicator::declare
  grouped,         // one grouped_allreduce
  arena,           // GradientArena: ready() of each array, then wait()
  arena_blocking,  // Communicator::*_blocking on a GradientArena's memory
  region,          // Communicator::*_blocking on memory of Communicator::allocate
  replayed,        // declared, once the engine replays the step; fails if it never does
};
inline constexpr int kWayCount = 9;

constexpr std::string_view to_string(Way way) noexcept {
  constexpr std::string_view kNames[kWayCount] = {"blocking",       "vector",  "named",
                                                  "declared",       "grouped", "arena",
                                                  "arena_blocking", "region",  "replayed"};
  return kNames[static_cast<int>(way)];
}

enum class Placement : uint8_t { both, in_place, out_of_place };

/// The parsed command line.
struct Settings {
  std::string case_name;
  int ranks = 0;        // 0: not given
  std::string backend;  // empty: the environment decides
  bool pin = false;
  std::string json, csv, plot;  // files; "-" is standard output; empty: none
  std::string sample_file;      // `create` only: the file to which a child appends its sample

  std::vector<int64_t> bytes;
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::optional<Way> way;  // none: the case's first way
  Placement placement = Placement::both;

  std::string set = "resnet50";
  int64_t elements = 0;  // elements of each tensor of a set; 0: the set's own number
  double backward_ms = 50;
  int64_t steps = 1000;
  int64_t calls = 20'000;
  bool polled = false;

  int warmup = 5;
  int repetitions = 11;
  int64_t iterations = 0;  // 0: enough to fill repetition_ms
  double repetition_ms = 20;
};

}  // namespace tutti::bench
