#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/collectives/queue_network.h"
#include "tutti/collectives/executor.h"
#include "tutti/collectives/schedule.h"
#include "tutti/kernels/convert.h"

namespace tutti::test {

using Counts = std::vector<int64_t>;

inline double number_at(DataType dtype, const std::byte* data, int64_t i) {
  double value = 0;
  cast(dtype, data + i * size_of(dtype), DataType::f64, reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

inline void set_number(DataType dtype, std::byte* data, int64_t i, double value) {
  cast(DataType::f64, reinterpret_cast<const std::byte*>(&value), dtype, data + i * size_of(dtype),
       1);
}

/// Returns a small integer for each rank and element, the same in every test.
inline double sample(int rank, int64_t i) { return static_cast<double>((rank * 5 + i * 3) % 8); }

/// Returns the sum of sample() over all ranks.
inline double sum_of_samples(int size, int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += sample(rank, i);
  return sum;
}

/// One rank's input and result of a collective. With a bucket, edge functions pack `input` into the
/// bucket and unpack the bucket into `output`. Without a bucket they do so with memory of the
/// executor, but elements in the range `direct` are used in place.
struct Member {
  Collective collective;
  Launch launch;
  Counts send_counts, recv_counts;
  std::vector<std::byte> input, output, bucket;
  std::vector<std::byte> output_before;
  bool in_place = false;
  Range direct;

  static void fill(void* self, Range range, std::byte* bucket) {
    auto& member = *static_cast<Member*>(self);
    const auto bytes = size_of(member.collective.dtype);
    std::memcpy(bucket, member.input.data() + range.begin * bytes,
                static_cast<size_t>(range.count * bytes));
  }
  static void drain(void* self, Range range, const std::byte* bucket, Scale scale) {
    auto& member = *static_cast<Member*>(self);
    const auto bytes = size_of(member.collective.dtype);
    cast(member.collective.dtype, bucket, member.collective.dtype,
         member.output.data() + range.begin * bytes, range.count, scale);
  }
  static const std::byte* input_of(void* self, Range range) {
    auto& member = *static_cast<Member*>(self);
    if (range.begin < member.direct.begin || range.end() > member.direct.end()) return nullptr;
    return member.input.data() + range.begin * size_of(member.collective.dtype);
  }
  static std::byte* output_of(void* self, Range range) {
    return const_cast<std::byte*>(input_of(self, range)) == nullptr
               ? nullptr
               : static_cast<Member*>(self)->output.data() +
                     range.begin * size_of(static_cast<Member*>(self)->collective.dtype);
  }
  double result(int64_t i) const {
    return number_at(collective.dtype, in_place ? input.data() : output.data(), i);
  }
};

/// Runs all ranks of one collective on a QueueNetwork.
struct Job {
  Job(int size, uint64_t seed) : network(size, seed), random(seed ^ 0x5bd1e995), members(size) {}

  struct Setting {
    CollectiveKind kind = CollectiveKind::allreduce;
    DataType dtype = DataType::f32;
    ReduceOp op = ReduceOp::sum;
    int root = 0;
    Counts counts;
    std::vector<Counts> matrix = {};  // alltoall
    bool in_place = false;
    bool through_bucket = false;
    bool packs = false;  // like through_bucket, but with the executor's bucket
    Range direct = {};
    Scale scale = {};
    uint64_t tag = 1;
  };

  /// Fills the members: sample() into the inputs and a pattern into the outputs.
  void prepare(const Setting& setting) {
    const int size = network.size();
    for (int rank = 0; rank < size; ++rank) {
      auto& member = members[static_cast<size_t>(rank)];
      member = Member{};
      member.send_counts = setting.counts;
      if (setting.kind == CollectiveKind::alltoall) {
        member.send_counts = setting.matrix[static_cast<size_t>(rank)];
        for (const auto& row : setting.matrix)
          member.recv_counts.push_back(row[static_cast<size_t>(rank)]);
      }
      member.in_place = setting.in_place;
      auto& collective = member.collective;
      collective = {setting.kind, setting.dtype,      setting.op,         setting.root, nullptr,
                    nullptr,      member.send_counts, member.recv_counts, setting.scale};
      const Problem problem{setting.kind,       rank, size, setting.root, member.send_counts,
                            member.recv_counts, {},   false};
      const auto bytes = size_of(setting.dtype);
      const int64_t inputs = input_count(problem), outputs = output_count(problem);
      member.input.resize(
          static_cast<size_t>((setting.in_place ? std::max(inputs, outputs) : inputs) * bytes));
      member.output.resize(static_cast<size_t>(outputs * bytes), std::byte{0x5a});
      for (int64_t i = 0; i < inputs; ++i)
        set_number(setting.dtype, member.input.data(), i, sample(rank, i));
      collective.input = member.input.data();
      collective.output = setting.in_place ? member.input.data() : member.output.data();
      member.launch.tag = setting.tag;
      if (setting.through_bucket) {
        member.bucket.resize(static_cast<size_t>(std::max(inputs, outputs) * bytes));
        collective.input = collective.output = member.bucket.data();
        member.launch.edges = {&member, &Member::fill, &Member::drain, nullptr, nullptr};
        if (setting.packs) {
          collective.input = collective.output = nullptr;
          member.direct = setting.direct;
          member.launch.edges.input = &Member::input_of;
          member.launch.edges.output = &Member::output_of;
        }
      }
      member.output_before = member.output;
    }
  }

  void start(const Algorithm& algorithm, const ExecutorOptions& options,
             std::span<const int> hosts = {}) {
    operations.clear();
    executors.clear();
    for (int rank = 0; rank < network.size(); ++rank)
      operations.push_back(add_executor(rank, options, hosts)
                               .start(algorithm, members[static_cast<size_t>(rank)].collective,
                                      members[static_cast<size_t>(rank)].launch));
    states.assign(operations.size(), OperationState::pending);
  }

  Executor& add_executor(int rank, const ExecutorOptions& options,
                         std::span<const int> hosts = {}) {
    return *executors.emplace_back(std::make_unique<Executor>(
        network.transport(rank), std::vector<int>(hosts.begin(), hosts.end()), options));
  }

  /// Advances random ranks between random deliveries until all are done. Returns false if they
  /// never are.
  bool finish() {
    for (int idle = 0; idle < 1000;) {
      const auto rank = random() % operations.size();
      if (states[rank] == OperationState::pending) states[rank] = operations[rank]->advance();
      if (std::ranges::none_of(states, [](auto state) { return state == OperationState::pending; }))
        return true;
      idle = network.step() ? 0 : idle + 1;
    }
    return false;
  }

  void run(const Algorithm& algorithm, const ExecutorOptions& options,
           std::span<const int> hosts = {}) {
    start(algorithm, options, hosts);
    ASSERT_TRUE(finish());
    EXPECT_FALSE(network.has_tampering);
    for (int rank = 0; rank < network.size(); ++rank)
      EXPECT_EQ(network.transport(rank).tickets(), 0u);
  }

  QueueNetwork network;
  std::mt19937_64 random;
  std::vector<Member> members;
  std::vector<std::unique_ptr<Executor>> executors;
  std::vector<OperationPtr> operations;
  std::vector<OperationState> states;
};

}  // namespace tutti::test
