#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/backends/conformance/collective_cases.h"
#include "tutti/backends/backend.h"

// One rank's part of a queued operation, in every form that its memory may have.

namespace tutti::test {

/// How a rank holds the memory of an operation. Ranks of one operation may use different forms.
enum class Form : uint8_t { apart, in_place, region, region_in_place };
constexpr int kForms = 4;

/// One rank's part of a Case, with its own memory.
class Part {
 public:
  Part(Backend& backend, Case& test, int rank, Form form) : test_(test), rank_(rank) {
    const auto at = static_cast<size_t>(rank);
    collective = test.of(rank);
    const auto& input = test.inputs[at];
    const auto& output = test.outputs[at];
    const bool is_shared = form == Form::region || form == Form::region_in_place;
    const bool is_in_place = form == Form::in_place || form == Form::region_in_place;
    const size_t begin = (input.size() + 63) / 64 * 64, bytes = begin + output.size() + 64;
    if (is_shared)
      region_ = backend.allocate(bytes, {});
    else
      heap_.resize(bytes);
    auto* memory = is_shared ? region_->data() : heap_.data();
    collective.input = memory;
    collective.output = memory + begin;
    if (is_in_place) merge(memory, input.size(), output.size());
    std::copy(output.begin(), output.end(), collective.output);
    std::copy(input.begin(), input.end(), const_cast<std::byte*>(collective.input));
    before_.assign(collective.output, collective.output + output.size());
  }

  void check() const {
    const auto& expected = test_.expected[static_cast<size_t>(rank_)];
    EXPECT_TRUE(same(expected, {collective.output, expected.size()}))
        << to_string(collective.kind) << " root " << collective.root << ": wrong on rank " << rank_;
  }
  void check_untouched() const {
    EXPECT_TRUE(same(before_, {collective.output, before_.size()}))
        << to_string(collective.kind) << ": written on rank " << rank_;
  }

  Collective collective;

 private:
  // Places input and output in the same memory, as far as the kind allows.
  void merge(std::byte* memory, size_t input, size_t output) {
    using enum CollectiveKind;
    int64_t before = 0;
    for (int rank = 0; rank < rank_ && collective.send_counts.size() > 1; ++rank)
      before += collective.send_counts[static_cast<size_t>(rank)];
    before *= size_of(collective.dtype);
    const bool is_root = collective.root == rank_;
    if (collective.kind == allgather || (collective.kind == gather && is_root))
      collective.input = collective.output + before;
    else if (collective.kind == scatter && is_root)
      collective.output = memory + before;
    else if (input == output)
      collective.output = memory;
  }

  Case& test_;
  const int rank_;
  std::vector<std::byte> heap_;
  std::vector<std::byte> before_;  // the output before the operation
  std::unique_ptr<Region> region_;
};

inline Launch launch_in(int queue, uint64_t tag) {
  Launch launch;
  launch.queue = queue;
  launch.tag = tag;
  return launch;
}

/// Starts as the engine does: in the queue if the backend packs this operation, otherwise outside.
inline OperationPtr start_in_queue(Backend& backend, const Collective& collective, Launch launch) {
  if (!backend.packs_itself(collective, launch)) launch.queue = kNoQueue;
  return backend.start(collective, launch);
}

inline void know_longest(Case& test) {
  if (test.shape.kind != CollectiveKind::alltoall) return;
  test.shape.longest = 0;
  for (const auto& counts : test.send_counts)
    for (const int64_t count : counts) test.shape.longest = std::max(test.shape.longest, count);
}

inline std::vector<CollectiveKind> kinds_of_all_ranks() {
  using enum CollectiveKind;
  return {allreduce, allgather,      broadcast, reduce, gather,
          scatter,   reduce_scatter, alltoall,  barrier};
}

}  // namespace tutti::test
