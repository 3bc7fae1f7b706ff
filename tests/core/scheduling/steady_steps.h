#pragma once

// Steps as trainers run them: sharded layers, tensor parallelism, a pipeline. Once they repeat,
// they send no control message, allocate nothing, and move exactly the bytes of their formula.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/core/communicator.h"

namespace tutti::test {

/// One step of one rank, and the number of bytes that this rank sends in it.
class SteadyStep {
 public:
  explicit SteadyStep(Communicator& comm) : comm_(comm) {}
  virtual ~SteadyStep() = default;
  virtual void run(int step) = 0;
  virtual uint64_t bytes() const = 0;

 protected:
  using Values = std::vector<float>;
  uint64_t others() const { return static_cast<uint64_t>(comm_.size() - 1); }
  bool is_shm() const { return comm_.backend() == "shm"; }
  static constexpr uint64_t kElement = sizeof(float);
  // In shared memory a rank writes its data for all others once. Elsewhere it sends it to each.
  uint64_t given_to_all(uint64_t bytes) const { return is_shm() ? bytes : others() * bytes; }
  // Over messages, each operation first sends one byte to each other rank, to collect the verdicts
  // (whether all ranks run it).
  uint64_t gate() const { return is_shm() ? 0 : others(); }

  void gather(const std::string& name, Values& part, Values& whole, int step) {
    fill(part, comm_.rank(), step);
    comm_.allgather(name, part, whole).wait();
    for (int rank = 0; rank < comm_.size(); ++rank)
      expect(whole[static_cast<size_t>(rank) * part.size()], value(rank, step), name, step);
  }
  Work scatter(const std::string& name, Values& whole, Values& part, int step) {
    fill(whole, comm_.rank(), step);
    return comm_.reduce_scatter(name, whole, part, {.op = ReduceOp::sum});
  }
  float summed(int step) const {
    float sum = 0;
    for (int rank = 0; rank < comm_.size(); ++rank) sum += value(rank, step);
    return sum;
  }
  static float value(int rank, int step) { return static_cast<float>(10 * rank + step % 9); }
  static void fill(Values& values, int rank, int step) {
    std::fill(values.begin(), values.end(), value(rank, step));
  }
  void expect(float got, float wanted, const std::string& name, int step) const {
    if (got != wanted) {
      ASSERT_EQ(got, wanted) << name << " in step " << step << " on rank " << comm_.rank();
    }
  }

  Communicator& comm_;
};

/// Runs 32 layers as FSDP does. Parameters are gathered in the forward and in the backward pass.
/// Each layer's gradients are reduced and scattered while the next layer is computed.
class ShardedStep : public SteadyStep {
 public:
  explicit ShardedStep(Communicator& comm)
      : SteadyStep(comm),
        part_(kPart),
        whole_(kPart * static_cast<size_t>(comm.size())),
        gradients_(kLayers, Values(whole_.size())),
        shares_(kLayers, Values(kPart)) {}

  void run(int step) override {
    for (size_t layer = 0; layer < kLayers; ++layer)
      gather(fmt::format("forward {}", layer), part_, whole_, step);
    std::vector<Work> reduced;
    for (size_t layer = kLayers; layer-- > 0;) {
      gather(fmt::format("backward {}", layer), part_, whole_, step);
      reduced.push_back(
          scatter(fmt::format("gradient {}", layer), gradients_[layer], shares_[layer], step));
    }
    for (auto& work : reduced) work.wait();
    for (const auto& share : shares_) expect(share.back(), summed(step), "gradient", step);
  }
  uint64_t bytes() const override {
    constexpr uint64_t kBytes = kPart * kElement;
    return kLayers * (2 * (given_to_all(kBytes) + gate()) + others() * kBytes + gate());
  }

 private:
  static constexpr size_t kLayers = 32, kPart = 300;
  Values part_, whole_;
  std::vector<Values> gradients_, shares_;
};

/// Layers of tensor parallelism with split sequences. In both passes the inputs are gathered, and
/// the outputs are reduced and scattered. Experts exchange tokens, small gradients of norms are
/// summed, and rank 0 broadcasts a number.
class TensorParallelStep : public SteadyStep {
 public:
  explicit TensorParallelStep(Communicator& comm)
      : SteadyStep(comm),
        part_(kPart),
        whole_(kPart * static_cast<size_t>(comm.size())),
        share_(kPart),
        tokens_(whole_.size()),
        others_(whole_.size()),
        norms_(kNorms),
        number_(1) {}

  void run(int step) override {
    for (const char* way : {"forward", "backward"})
      for (uint64_t layer = 0; layer < kLayers; ++layer) {
        const auto name = fmt::format("{} {}", way, layer);
        gather(name + " in", part_, whole_, step);
        scatter(name + " out", whole_, share_, step).wait();
        expect(share_[1], summed(step), name, step);
        fill(tokens_, comm_.rank(), step);
        comm_.alltoall(name + " tokens", tokens_, others_, {}).wait();
        expect(others_.back(), value(comm_.size() - 1, step), name, step);
      }
    fill(norms_, comm_.rank(), step);
    fill(number_, comm_.rank(), step);
    auto summed_norms = comm_.allreduce("norms", norms_, ReduceOp::sum);
    comm_.broadcast("number", number_).wait();
    summed_norms.wait();
    expect(norms_[3], summed(step), "norms", step);
    expect(number_[0], value(0, step), "number", step);
  }
  uint64_t bytes() const override {
    constexpr uint64_t kBytes = kPart * kElement;
    const uint64_t layer = given_to_all(kBytes) + 2 * others() * kBytes + 3 * gate();
    return 2 * kLayers * layer + given_to_all(kNorms * kElement) + told() + gate();
  }

 private:
  // The bytes of rank 0's broadcast, which follows a tree: the number of ranks that have the value
  // doubles in each round.
  uint64_t told() const {
    if (is_shm()) return comm_.rank() == 0 ? kElement : 0;
    uint64_t sent = 0;
    for (int known = 1; known < comm_.size(); known *= 2)
      if (comm_.rank() < known && comm_.rank() + known < comm_.size()) sent += kElement;
    return sent;
  }

  static constexpr uint64_t kLayers = 4, kPart = 300, kNorms = 64;
  Values part_, whole_, share_, tokens_, others_, norms_, number_;
};

/// A stage of a pipeline. The activations of 8 micro-batches go to the next rank, and their
/// gradients come back. A rank exchanges data only with its neighbours; the first and the last rank
/// have one neighbour.
class PipelineStep : public SteadyStep {
 public:
  explicit PipelineStep(Communicator& comm)
      : SteadyStep(comm), forward_(kBatches, Values(kCount)), backward_(kBatches, Values(kCount)) {}

  void run(int step) override {
    std::vector<Work> sent;
    const int rank = comm_.rank(), last = comm_.size() - 1;
    const auto pass = [&](const char* what, std::vector<Values>& batches, int from, int to) {
      for (size_t batch = 0; batch < kBatches; ++batch) {
        const auto name = fmt::format("{} {}", what, batch);
        auto& values = batches[batch];
        const int number = step + static_cast<int>(batch);
        if (from < 0 || from > last)
          fill(values, 0, number);
        else
          comm_.recv(name, values, from).wait();
        expect(values[7], value(0, number), name, step);
        if (to >= 0 && to <= last) sent.push_back(comm_.send(name, values, to));
      }
    };
    pass("activation", forward_, rank - 1, rank + 1);
    pass("gradient", backward_, rank + 1, rank - 1);
    for (auto& work : sent) work.wait();
  }
  uint64_t bytes() const override {
    const bool is_end = comm_.rank() == 0 || comm_.rank() == comm_.size() - 1;
    return (is_end ? 1 : 2) * kBatches * kCount * kElement;
  }

 private:
  static constexpr uint64_t kBatches = 8, kCount = 1000;
  std::vector<Values> forward_, backward_;
};

template <class Step>
std::unique_ptr<SteadyStep> make_step(Communicator& comm) {
  return std::make_unique<Step>(comm);
}

struct SteadyCase {
  const char* name;
  std::unique_ptr<SteadyStep> (*make)(Communicator&);
  const char* backend;
  int ranks;
};

inline std::vector<SteadyCase> steady_cases() {
  std::vector<SteadyCase> cases;
  for (const char* backend : {"shm", "tcp"})
    for (const int ranks : {2, 4}) {
      cases.push_back({"sharded", make_step<ShardedStep>, backend, ranks});
      cases.push_back({"tensor_parallel", make_step<TensorParallelStep>, backend, ranks});
      cases.push_back({"pipeline", make_step<PipelineStep>, backend, ranks});
    }
  return cases;
}

inline std::string name_of_case(const testing::TestParamInfo<SteadyCase>& info) {
  return fmt::format("{}_{}_{}", info.param.name, info.param.backend, info.param.ranks);
}

/// The first four steps settle what is negotiated. The next two make all allocations.
inline void run_steadily(const SteadyCase& job, int steps, double seconds) {
  run_processes(
      job.ranks,
      [&](Communicator& comm) {
        const auto step = job.make(comm);
        int number = 0;
        const auto run_to = [&](int end) {
          while (number < end) step->run(number++);
          return comm.statistics();
        };
        const auto asked = run_to(4), settled = run_to(6), after = run_to(steps);
        const auto count = static_cast<uint64_t>(steps - 6);
        EXPECT_EQ(after.negotiation_messages, asked.negotiation_messages);
        EXPECT_EQ(after.allocations, settled.allocations);
        EXPECT_EQ(after.vetoed_buckets, 0u);
        EXPECT_EQ(after.data_bytes - settled.data_bytes, count * step->bytes());
        EXPECT_EQ(after.data_messages - settled.data_messages,
                  after.predicted_messages - settled.predicted_messages);
        comm.barrier("over").wait();
      },
      [&](Options& options) { options.backend = job.backend; }, seconds);
}

}  // namespace tutti::test
