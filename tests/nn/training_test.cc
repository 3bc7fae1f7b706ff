// The trainer on several ranks: equal bits where they are promised, nearly equal values elsewhere.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "tests/support/network_namespaces.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/nn.h"

namespace tutti::nn {
namespace {

Sequential small_lenet(uint64_t seed) {
  Sequential model(seed);
  model.add("conv1", conv2d(1, 4, 5))
      .add("relu1", relu())
      .add("pool1", max_pool2d(2))
      .add("flatten", flatten())
      .add("fc1", linear(4 * 12 * 12, 10));
  return model;
}

const Dataset& digits() {
  static const Dataset data = read_mnist(std::string(TUTTI_MNIST) + "/t10k-images-idx3-ubyte.gz",
                                         std::string(TUTTI_MNIST) + "/t10k-labels-idx1-ubyte.gz");
  return data;
}

// Returns all parameters after `steps` steps with a global batch of 64.
std::vector<float> train(Communicator& comm, uint64_t seed, int steps, double rate) {
  auto model = small_lenet(seed);
  Sgd sgd(model.parameters(), {.learning_rate = rate, .momentum = 0.9});
  auto optimizer = distributed(comm, sgd);
  DataLoader loader(
      digits(),
      {.batch = 64 / comm.size(), .rank = comm.rank(), .size = comm.size(), .seed = seed});
  for (int step = 0; step < steps; ++step) {
    auto batch = loader.next();
    if (!batch) batch = loader.next();
    model.zero_grad();
    CrossEntropy loss(model.forward(batch->images), batch->labels);
    model.backward(loss);
    optimizer.step();
  }
  std::vector<float> all;
  for (const auto& parameter : model.parameters()) {
    const auto values = parameter.value.span<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<float> train_threads(int size, uint64_t seed, int steps, double rate,
                                 Determinism determinism, const std::string& backend = "auto") {
  std::vector<float> result;
  std::mutex mutex;
  test::run_threads(
      size,
      [&](Communicator& comm) {
        auto all = train(comm, seed, steps, rate);
        const std::lock_guard lock(mutex);
        if (result.empty())
          result = std::move(all);
        else
          EXPECT_EQ(std::memcmp(all.data(), result.data(), all.size() * sizeof(float)), 0)
              << "ranks differ";
      },
      [&](Options& options) {
        options.determinism = determinism;
        options.backend = backend;
      },
      120);
  return result;
}

TEST(Training, RankOrderEndsWithEqualBitsOverBackends) {
  for (uint64_t seed = 1; seed <= test::repetitions(5); ++seed) {
    const auto memory = train_threads(2, seed, 20, 0.05, Determinism::rank_order, "memory");
    for (const char* backend : {"shm", "tcp"}) {
      const auto other = train_threads(2, seed, 20, 0.05, Determinism::rank_order, backend);
      ASSERT_EQ(memory.size(), other.size());
      EXPECT_EQ(std::memcmp(memory.data(), other.data(), memory.size() * sizeof(float)), 0)
          << backend << " seed " << seed;
    }
  }
}

// Trains with threads, with processes and on two hosts. Processes come first, because they must be
// forked before this program starts a thread. Rank 0 leaves its parameters in a file.
TEST(Training, RankOrderEndsWithEqualBitsInEveryMode) {
  if (const auto why = test::NetworkNamespaces::unavailable(); !why.empty()) GTEST_SKIP() << why;
  const auto file = testing::TempDir() + "training_mode_" + std::to_string(::getpid());
  const auto tune = [](Options& options) { options.determinism = Determinism::rank_order; };
  std::vector<std::vector<char>> results;
  const auto collect = [&] {
    std::ifstream in(file, std::ios::binary);
    results.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    std::filesystem::remove(file);
  };
  for (uint64_t seed = 1; seed <= test::repetitions(5); ++seed) {
    const auto body = [&](Communicator& comm) {
      const auto all = train(comm, seed, 20, 0.05);
      if (comm.rank() == 0)
        std::ofstream(file, std::ios::binary)
            .write(reinterpret_cast<const char*>(all.data()),
                   static_cast<std::streamsize>(all.size() * sizeof(float)));
    };
    test::run_processes(2, body, tune, 120);
    collect();
    test::run_hosts({0, 1}, body, tune, 120);
    collect();
  }
  for (uint64_t seed = 1; seed <= test::repetitions(5); ++seed) {
    const auto threads = train_threads(2, seed, 20, 0.05, Determinism::rank_order);
    const std::string_view expected(reinterpret_cast<const char*>(threads.data()),
                                    threads.size() * sizeof(float));
    for (size_t mode = 0; mode < 2; ++mode) {
      const auto& result = results[(seed - 1) * 2 + mode];
      EXPECT_EQ(std::string_view(result.data(), result.size()), expected)
          << (mode == 0 ? "processes" : "hosts") << ", seed " << seed;
    }
  }
}

// Returns the mean loss of all ranks over the first ten and over the last ten of `steps` steps.
template <class Make>
std::pair<double, double> losses(Communicator& comm, const Make& make, int steps) {
  auto model = small_lenet(3);
  auto inner = make(model.parameters());
  auto optimizer = distributed(comm, inner);
  DataLoader loader(digits(), {.batch = 32, .rank = comm.rank(), .size = comm.size(), .seed = 3});
  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    auto batch = loader.next();
    if (!batch) batch = loader.next();
    model.zero_grad();
    CrossEntropy loss(model.forward(batch->images), batch->labels);
    if (step < 10) first += loss.value() / 10;
    if (step >= steps - 10) last += loss.value() / 10;
    model.backward(loss);
    optimizer.step();
  }
  return {comm.allreduce_blocking("first", first), comm.allreduce_blocking("last", last)};
}

// An untrained model with ten classes has a loss of about ln 10 = 2.3. With every optimizer, the
// model learns to distinguish most of them.
TEST(Training, TheLossFalls) {
  test::run_threads(2, [](Communicator& comm) {
    const auto expect_falls = [&](const char* name, auto&& make) {
      const auto [first, last] = losses(comm, make, 100);
      EXPECT_GT(first, 1.2) << name;
      EXPECT_LT(last, 1.0) << name;
    };
    using Parameters = std::vector<Parameter>;
    expect_falls("Sgd", [](Parameters all) {
      return Sgd(std::move(all), {.learning_rate = 0.05, .momentum = 0.9});
    });
    expect_falls("Adam",
                 [](Parameters all) { return Adam(std::move(all), {.learning_rate = 0.005}); });
    expect_falls("AdamW", [](Parameters all) {
      return AdamW(std::move(all), {.learning_rate = 0.005, .weight_decay = 0.01});
    });
    expect_falls("RmsProp",
                 [](Parameters all) { return RmsProp(std::move(all), {.learning_rate = 0.002}); });
  });
}

TEST(Training, OneTwoAndFourRanksAgree) {
  for (uint64_t seed = 1; seed <= test::repetitions(5); ++seed) {
    const auto one = train_threads(1, seed, 50, 0.01, Determinism::fastest);
    for (const int size : {2, 4}) {
      const auto more = train_threads(size, seed, 50, 0.01, Determinism::fastest);
      double difference = 0, norm = 0;
      for (size_t i = 0; i < one.size(); ++i) {
        const double d = static_cast<double>(one[i]) - more[i];
        difference += d * d;
        norm += static_cast<double>(one[i]) * one[i];
      }
      EXPECT_LE(std::sqrt(difference / norm), 1e-6) << size << " ranks, seed " << seed;
    }
  }
}

TEST(Training, ResumesToTheBit) {
  const test::ScratchFolder folder;  // own folder per process, as two builds may test at once
  auto run = [&](Communicator& comm, int from, int to, bool load) {
    auto model = small_lenet(7);
    AdamW optimizer(model.parameters(), {.learning_rate = 0.002});
    DataLoader loader(digits(), {.batch = 64, .seed = 7});
    TrainingState training(comm, model, optimizer, loader);
    CheckpointFolder checkpoints(comm, folder.path());
    if (load) training.load(checkpoints);
    for (int step = from; step < to; ++step) {
      auto batch = loader.next();
      if (!batch) batch = loader.next();
      model.zero_grad();
      CrossEntropy loss(model.forward(batch->images), batch->labels);
      model.backward(loss);
      optimizer.step();
      if (step == 19) training.save(checkpoints, 20);
    }
    const auto values = model.parameters()[2].value.span<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  test::run_threads(1, [&](Communicator& comm) {
    const auto whole = run(comm, 0, 40, false);
    const auto resumed = run(comm, 20, 40, true);
    EXPECT_EQ(std::memcmp(whole.data(), resumed.data(), whole.size() * sizeof(float)), 0);
  });
}

}  // namespace
}  // namespace tutti::nn
