// Repeated sends and receives go on without requests, each pair by itself. If the two ranks stop
// matching, both get an error and no memory changes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "tests/support/bulk.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using Values = std::vector<float>;

class Pairs : public testing::TestWithParam<const char*> {
 protected:
  static void run(int size, const test::RankFunction& body) {
    const auto tune = [](Options& options) { options.backend = GetParam(); };
    if (std::string(GetParam()) == "shm")
      test::run_processes(size, body, tune);
    else
      test::run_threads(size, body, tune);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, Pairs, testing::Values("shm", "memory", "tcp", "hierarchical"),
                         [](const auto& info) { return std::string(info.param); });

// One stage of a pipeline. In a step, the activations of each micro-batch go to the next rank and
// their gradients come back. The first and the last rank do half of the work of the others.
class Stage {
 public:
  static constexpr int kBatches = 8;
  static constexpr size_t kCount = 300;  // elements of a micro-batch

  explicit Stage(Communicator& comm)
      : comm_(comm), forward_(kBatches, Values(kCount)), backward_(kBatches, Values(kCount)) {}

  void step(int number) {
    std::vector<Work> sent;
    for (int batch = 0; batch < kBatches; ++batch) {
      auto& values = forward_[static_cast<size_t>(batch)];
      if (is_first()) fill(values, number, batch);
      if (!is_first()) comm_.recv(name("activation", batch), values, comm_.rank() - 1).wait();
      expect(values, number, batch);
      if (!is_last())
        sent.push_back(comm_.send(name("activation", batch), values, comm_.rank() + 1));
    }
    for (int batch = 0; batch < kBatches; ++batch) {
      auto& values = backward_[static_cast<size_t>(batch)];
      if (is_last()) fill(values, -number, batch);
      if (!is_last()) comm_.recv(name("gradient", batch), values, comm_.rank() + 1).wait();
      expect(values, -number, batch);
      if (!is_first())
        sent.push_back(comm_.send(name("gradient", batch), values, comm_.rank() - 1));
    }
    for (auto& work : sent) work.wait();
  }
  /// Returns the bytes that this rank sends in a step.
  uint64_t bytes() const {
    const uint64_t neighbours = (is_first() ? 0 : 1) + (is_last() ? 0 : 1);
    return neighbours * kBatches * kCount * sizeof(float);
  }
  uint64_t uses() const { return 2 * kBatches * ((is_first() ? 0u : 1u) + (is_last() ? 0u : 1u)); }

 private:
  bool is_first() const { return comm_.rank() == 0; }
  bool is_last() const { return comm_.rank() == comm_.size() - 1; }
  static std::string name(const char* what, int batch) { return fmt::format("{} {}", what, batch); }
  static void fill(Values& values, int number, int batch) {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(number * 10 + batch) + static_cast<float>(i % 7);
  }
  void expect(const Values& values, int number, int batch) {
    Values wanted(values.size());
    fill(wanted, number, batch);
    EXPECT_EQ(values, wanted) << "step " << number << " batch " << batch;
  }

  Communicator& comm_;
  std::vector<Values> forward_, backward_;
};

TEST_P(Pairs, APipelineAsksForNothingFromTheFourthStepOn) {
  for (const int size : {2, 4})
    run(size, [](Communicator& comm) {
      Stage stage(comm);
      for (int number = 0; number < 3; ++number) stage.step(number);
      const auto before = comm.statistics();
      for (int number = 3; number < 6; ++number) stage.step(number);
      const auto settled = comm.statistics();
      constexpr uint64_t kSteps = 30;
      for (uint64_t i = 0; i < kSteps; ++i) stage.step(6 + static_cast<int>(i));
      const auto after = comm.statistics();
      EXPECT_EQ(after.negotiation_messages, before.negotiation_messages);
      EXPECT_EQ(after.allocations, settled.allocations);
      EXPECT_EQ(after.data_bytes - settled.data_bytes, kSteps * stage.bytes());
      EXPECT_EQ(after.predicted_bytes - settled.predicted_bytes, kSteps * stage.bytes());
      EXPECT_EQ(after.data_messages - settled.data_messages,
                after.predicted_messages - settled.predicted_messages);
      EXPECT_EQ(after.replayed_buckets - settled.replayed_buckets, kSteps * stage.uses());
      comm.allgather_bytes("over", {});
    });
}

// The change that a rank makes in the odd step.
enum class Odd { none, longer, narrower, turned };

// Ranks 0 and 1 send and receive. In step kOdd each makes its change.
void change_between_two(Communicator& comm, Odd of_sender, Odd of_receiver) {
  constexpr int kSteps = 12, kOdd = 6, kCount = 100;
  const bool sends = comm.rank() == 0;
  const Odd mine = sends ? of_sender : of_receiver;
  const bool is_refused = of_sender != of_receiver;
  for (int step = 0; step < kSteps; ++step) {
    const Odd odd = step == kOdd ? mine : Odd::none;
    Values values(odd == Odd::longer ? kCount + 1 : kCount,
                  sends ? static_cast<float>(step) : -1.0f);
    const auto before = values;
    std::vector<double> doubles(kCount, sends ? static_cast<double>(step) : -1.0);
    const auto doubles_before = doubles;
    const TensorView view = odd == Odd::narrower ? TensorView(doubles) : TensorView(values);
    auto work = sends != (odd == Odd::turned) ? comm.send("x", view, 1 - comm.rank())
                                              : comm.recv("x", view, 1 - comm.rank());
    if (step != kOdd || !is_refused) {
      work.wait();
      if (odd == Odd::none) {
        EXPECT_EQ(values, Values(values.size(), static_cast<float>(step))) << "step " << step;
      }
      continue;
    }
    const auto error = test::expect_error(ErrorCode::mismatch, "", [&] { work.wait(); });
    EXPECT_EQ(error.tensor(), "x");
    std::string line = error.what();
    EXPECT_EQ(values, before);
    EXPECT_EQ(doubles, doubles_before);
    // Both ranks get the same error line.
    line.resize(200);
    std::string other(line.size(), ' ');
    const auto bytes = [](std::string& text) {
      return std::span(reinterpret_cast<uint8_t*>(text.data()), text.size());
    };
    auto told = comm.send(fmt::format("line of {}", comm.rank()), bytes(line), 1 - comm.rank());
    comm.recv(fmt::format("line of {}", 1 - comm.rank()), bytes(other), 1 - comm.rank()).wait();
    told.wait();
    EXPECT_EQ(other, line);
  }
}

void change(Communicator& comm, Odd of_sender, Odd of_receiver) {
  if (comm.rank() < 2) change_between_two(comm, of_sender, of_receiver);
  comm.allgather_bytes("over", {});
}

TEST_P(Pairs, AChangeIsAnErrorOnBothAndNothingIsWritten) {
  for (const Odd odd : {Odd::longer, Odd::narrower, Odd::turned})
    for (const bool is_senders : {true, false})
      run(3, [=](Communicator& comm) {
        SCOPED_TRACE(
            fmt::format("{} of the {}", static_cast<int>(odd), is_senders ? "sender" : "receiver"));
        change(comm, is_senders ? odd : Odd::none, is_senders ? Odd::none : odd);
      });
}

TEST_P(Pairs, AChangeOnBothIsNone) {
  for (const Odd odd : {Odd::longer, Odd::narrower})
    run(2, [=](Communicator& comm) { change(comm, odd, odd); });
}

// Large transfers wait until the receiver calls. Small ones arrive before it calls.
TEST_P(Pairs, OfAnySize) {
  run(2, [](Communicator& comm) {
    for (const size_t count : {0, 1, 1000, 100'000, 1'000'000})
      for (int step = 0; step < 8; ++step) {
        Values values(count, comm.rank() == 0 ? static_cast<float>(step) : -1.0f);
        const auto name = fmt::format("x{}", count);
        if (comm.rank() == 0)
          comm.send(name, values, 1).wait();
        else
          comm.recv(name, values, 0).wait();
        EXPECT_TRUE(test::same(values, Values(count, static_cast<float>(step)))) << count;
      }
    EXPECT_EQ(comm.statistics().replayed_buckets, 25u);
  });
}

// The receiver comes late. Until then the sender is not done, although all its data has arrived.
TEST_P(Pairs, ASenderIsDoneWhenItsReceiverHasCome) {
  run(2, [](Communicator& comm) {
    for (int step = 0; step < 8; ++step) {
      Values values(10, comm.rank() == 0 ? 1.0f : 0.0f);
      Work work;
      if (comm.rank() == 0) work = comm.send("x", values, 1);
      comm.allgather_bytes("sent", {});
      EXPECT_TRUE(comm.rank() != 0 || !work.done());
      comm.allgather_bytes("looked", {});
      if (comm.rank() == 1) work = comm.recv("x", values, 0);
      work.wait();
      EXPECT_EQ(values[9], 1.0f);
    }
    EXPECT_GE(comm.statistics().replayed_buckets, 5u);
  });
}

// One name is used in both directions. No two uses in a row are the same, and all results are
// right.
TEST_P(Pairs, ANameThatGoesToAndFro) {
  run(2, [](Communicator& comm) {
    for (int step = 0; step < 20; ++step) {
      const bool sends = step % 2 == comm.rank();
      Values values(10, sends ? static_cast<float>(step) : -1.0f);
      if (sends)
        comm.send("x", values, 1 - comm.rank()).wait();
      else
        comm.recv("x", values, 1 - comm.rank()).wait();
      EXPECT_EQ(values, Values(10, static_cast<float>(step)));
    }
  });
}

// Pairs are used beside a plan, and beside another pair of the same name.
TEST_P(Pairs, BesideAPlan) {
  run(3, [](Communicator& comm) {
    const int right = (comm.rank() + 1) % 3, left = (comm.rank() + 2) % 3;
    const auto step = [&](int number) {
      Values mine(20, static_cast<float>(comm.rank())), theirs(20), summed(10, 1.0f),
          other(9, 2.0f);
      auto first = comm.allreduce("summed", summed, ReduceOp::sum);
      auto sent = comm.send("x", mine, right);
      auto came = comm.recv("x", theirs, left);
      auto last = comm.allreduce("other", other, ReduceOp::sum);
      for (auto* work : {&first, &sent, &came, &last}) work->wait();
      EXPECT_EQ(theirs, Values(20, static_cast<float>(left))) << "step " << number;
      EXPECT_EQ(summed, Values(10, 3.0f));
      EXPECT_EQ(other, Values(9, 6.0f));
    };
    for (int i = 0; i < 5; ++i) step(i);
    const auto before = comm.statistics();
    for (int i = 5; i < 40; ++i) step(i);
    const auto after = comm.statistics();
    EXPECT_EQ(after.negotiation_messages, before.negotiation_messages);
    EXPECT_EQ(after.plans_locked, 1u);
    EXPECT_EQ(after.vetoed_buckets, 0u);
  });
}

// All data that a rank sent before it closed arrives. A receive of more fails immediately.
TEST_P(Pairs, APeerThatClosesIsNamed) {
  run(2, [](Communicator& comm) {
    constexpr int kSteps = 8;
    Values values(1000);
    for (int step = 0; step < kSteps; ++step) {
      if (comm.rank() == 0) {
        std::fill(values.begin(), values.end(), static_cast<float>(step));
        comm.send("x", values, 1).wait();
      } else {
        comm.recv("x", values, 0).wait();
        EXPECT_EQ(values, Values(1000, static_cast<float>(step)));
      }
    }
    if (comm.rank() == 0) return;
    const auto error = test::expect_error(
        ErrorCode::peer_left, "", [&] { comm.recv("x", values, 0).wait(Deadline::after(20)); });
    EXPECT_EQ(error.rank(), 0);
    EXPECT_EQ(error.tensor(), "x");
  });
}

// After a join, ranks send and receive as if they had not been paired before.
TEST_P(Pairs, GoOnAfterAJoin) {
  run(3, [](Communicator& comm) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int step = 0; step < 6; ++step) {
        Values values(10, static_cast<float>(comm.rank() == 0 ? step : -1));
        if (comm.rank() == 0) comm.send("x", values, 1).wait();
        if (comm.rank() == 1) comm.recv("x", values, 0).wait();
        EXPECT_EQ(values, Values(10, static_cast<float>(comm.rank() < 2 ? step : -1)));
      }
      comm.join().wait();
    }
  });
}

}  // namespace
}  // namespace tutti
