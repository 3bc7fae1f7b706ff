// An error is reported in one clear line, the same on every rank, and harms nothing else: after
// each case a correct allreduce runs on the same communicator.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/core/communicator.h"
#include "tutti/core/meeting/places.h"

namespace tutti {
namespace {

using test::expect_error;
using test::expect_refused;
using test::run_threads;
using test::still_works;

// Every rank calls `call`, must get exactly `line` and `code`, and goes on.
void expect_on_every_rank(int size, ErrorCode code, const std::string& line,
                          const std::function<Work(Communicator&)>& call) {
  run_threads(size, [&](Communicator& comm) {
    const auto error = test::error_of([&] { call(comm).wait(); });
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(std::string(error.what()), line) << "rank " << comm.rank();
    still_works(comm);
  });
}

void until(const std::atomic<bool>& flag) {
  EXPECT_TRUE(test::wait_until([&] { return flag.load(); }));
}

// Memory that outlives the call it is given to.
struct Memory {
  std::vector<float> floats = std::vector<float>(64, 1.0f);
  std::vector<double> doubles = std::vector<double>(64, 1.0);
};

class BadInput : public testing::Test {
 protected:
  Memory& memory(const Communicator& comm) { return memory_[static_cast<size_t>(comm.rank())]; }
  std::array<Memory, 4> memory_;
};

TEST_F(BadInput, RanksDisagreeOnDtype) {
  expect_on_every_rank(3, ErrorCode::mismatch,
                       "\"x\": ranks 0 2 sent f32[64], rank 1 sent f64[64]; all ranks must submit "
                       "the same dtype. Nothing was changed.",
                       [&](Communicator& comm) {
                         return comm.rank() == 1 ? comm.allreduce("x", memory(comm).doubles)
                                                 : comm.allreduce("x", memory(comm).floats);
                       });
}

TEST_F(BadInput, RanksDisagreeOnSplits) {
  expect_on_every_rank(
      2, ErrorCode::mismatch,
      "\"x\": rank 0 sent rows [40,24], rank 1 sent rows [32,32]; all ranks must give the same "
      "number of rows for each rank. Nothing was changed.",
      [&](Communicator& comm) {
        const int64_t rows[] = {comm.rank() == 0 ? 40 : 32, comm.rank() == 0 ? 24 : 32};
        return comm.reduce_scatter("x", memory(comm).floats, {}, rows);
      });
}

TEST_F(BadInput, RanksDisagreeOnGroup) {
  expect_on_every_rank(2, ErrorCode::mismatch,
                       "\"x\": rank 0 sent group \"g\" of 1, rank 1 sent no group; all ranks must "
                       "submit the same group. Nothing was changed.",
                       [&](Communicator& comm) {
                         const NamedTensor tensors[] = {{"x", memory(comm).floats}};
                         return comm.rank() == 0 ? comm.grouped_allreduce("g", tensors)
                                                 : comm.allreduce("x", memory(comm).floats);
                       });
}

TEST_F(BadInput, RanksDisagreeOnTheOperation) {
  expect_on_every_rank(2, ErrorCode::mismatch,
                       "\"x\": rank 0 sent allreduce, rank 1 sent broadcast; all ranks must submit "
                       "the same kind of operation. Nothing was changed.",
                       [&](Communicator& comm) {
                         return comm.rank() == 0 ? comm.allreduce("x", memory(comm).floats)
                                                 : comm.broadcast("x", memory(comm).floats, 0);
                       });
}

TEST_F(BadInput, SenderAndReceiverDisagree) {
  expect_on_every_rank(2, ErrorCode::mismatch,
                       "\"x\": rank 0 sends f32[64], rank 1 expects f32[10]; both must name the "
                       "same dtype and number of elements. Nothing was changed.",
                       [&](Communicator& comm) {
                         return comm.rank() == 0
                                    ? comm.send("x", memory(comm).floats, 1)
                                    : comm.recv("x", std::span(memory(comm).floats).first(10), 0);
                       });
}

TEST_F(BadInput, AGroupWithADuplicateIsRefusedWhole) {
  run_threads(1, [&](Communicator& comm) {
    auto& values = memory(comm).floats;
    const NamedTensor twice[] = {{"a", values}, {"a", values}};
    EXPECT_THROW(comm.grouped_allreduce("g", twice), Error);
    comm.allreduce("a", values).wait();  // nothing of the refused call was left pending
    still_works(comm);
  });
}

TEST_F(BadInput, ARankThatDoesNotStart) {
  auto options = Options::thread_rank(1, 3, make_memory_store());
  options.connect_timeout = 0.3;
  const auto text = test::refusal([&] { Communicator::create(options); }, ErrorCode::timeout);
  // As long as it waited, which is longer where the machine is busy.
  double seconds = 0;
  int end = 0;
  ASSERT_EQ(std::sscanf(text.c_str(), "rank 1 waited %lf%n", &seconds, &end), 1) << text;
  EXPECT_GE(seconds, 0.3);
  EXPECT_EQ(text.substr(static_cast<size_t>(end)),
            " s for ranks 0 2 of 3 to start; did it die, or is TUTTI_CONNECT_TIMEOUT too short?");
}

TEST_F(BadInput, TwoProcessesOfOneRank) {
  const auto store = make_memory_store();
  store->set("job/0/place/0", "somebody else");
  test::expect_error(ErrorCode::invalid_argument, "two processes say that they are rank 0",
                     [&] { Communicator::create(Options::thread_rank(0, 2, store)); });
}

TEST_F(BadInput, DifferentVersions) {
  const auto store = make_memory_store();
  store->set("job/0/terms", "9.9.9\n1\nwhatever a later version writes");
  EXPECT_STREQ(
      test::expect_error(ErrorCode::version, "",
                         [&] { Communicator::create(Options::thread_rank(0, 2, store)); })
          .what(),
      "rank 0 runs version 0.1.0 of the library, rank 1 runs version 9.9.9; all ranks must run "
      "the same version");
}

// Another program uses the same store under the same name.
TEST_F(BadInput, WhatNoRankPutIntoTheStore) {
  const auto create_with = [](const std::string& key, const std::string& text) {
    const auto store = make_memory_store();
    store->set(key, text);
    auto options = Options::thread_rank(0, 2, store);
    options.connect_timeout = 5;
    Communicator::create(options);
  };
  expect_error(
      ErrorCode::corrupt_data,
      "the store holds \"something else\" where a rank's settings were expected; give another "
      "TUTTI_JOB to what else uses this store",
      [&] { create_with("job/0/terms", "something else"); });
  expect_error(ErrorCode::corrupt_data,
               "rank 1 wrote something into the store that does not describe a rank",
               [] { decode_place(1, "something else"); });
}

TEST_F(BadInput, AWaitThatEndsWithItsDeadline) {
  run_threads(2, [](Communicator& comm) {
    if (comm.rank() == 1) comm.barrier("go").wait();
    auto work = comm.barrier("late");
    if (comm.rank() == 0) {
      expect_error(ErrorCode::timeout,
                   "\"late\" was not done when the deadline of wait() passed; the operation "
                   "continues. Wait again; the stall report names the ranks that are missing",
                   [&] { work.wait(Deadline::after(0.02)); });
      comm.barrier("go").wait();
    }
    work.wait();
    EXPECT_TRUE(work.done());
    still_works(comm);
  });
}

TEST_F(BadInput, DifferentSettings) {
  const auto errors = test::create_refusals(2, [](Options& options) {
    options.connect_timeout = 2;
    options.fusion_bytes = options.rank == 0 ? 1000 : 2000;
  });
  for (const auto& error : errors)
    EXPECT_EQ(error,
              "rank 0 has TUTTI_FUSION_BYTES=1000, rank 1 has TUTTI_FUSION_BYTES=2000; all ranks "
              "must have the same setting");
}

TEST_F(BadInput, AWorkDroppedUnwaited) {
  run_threads(2, [&](Communicator& comm) {
    static_cast<void>(comm.allreduce("dropped", memory(comm).floats, ReduceOp::sum));
    still_works(comm);
    comm.barrier_blocking();
    // The operation went on although its Work was destroyed.
    for (int i = 0; i < 1000 && memory(comm).floats[0] != 2.0f; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(memory(comm).floats[0], 2.0f);
  });
}

TEST_F(BadInput, AnErrorOfADroppedWorkIsLogged) {
  std::mutex mutex;
  std::vector<std::string> lines;
  run_threads(
      2,
      [&](Communicator& comm) {
        static_cast<void>(comm.allreduce(
            "dropped", std::span(memory(comm).floats).first(comm.rank() == 0 ? 4 : 5)));
        still_works(comm);
        comm.barrier_blocking();
      },
      [&](Options& options) {
        options.log = [&](LogLevel, std::string_view line) {
          const std::lock_guard lock(mutex);
          lines.emplace_back(line);
        };
      });
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].find("\"dropped\" failed and nobody waited for it:"), 0u) << lines[0];
}

TEST_F(BadInput, AForkDoesNotSpeakForItsParent) {
  run_threads(1, [&](Communicator& comm) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        static_cast<void>(comm.allreduce("x", memory(comm).floats));
      } catch (const Error& error) {
        ::_exit(error.code() == ErrorCode::closed ? 7 : 8);
      }
      ::_exit(9);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    still_works(comm);
  });
}

TEST_F(BadInput, AnExceptionInACallback) {
  std::mutex mutex;
  std::vector<std::string> lines;
  // Rank 1 submits "x" only after rank 0 has attached its callback. Otherwise the callback would
  // run within then() and throw there.
  std::atomic<bool> attached{false}, called{false};
  run_threads(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 0) {
          comm.allreduce("x", memory(comm).floats).then([&](std::exception_ptr) {
            called = true;
            throw std::runtime_error("oops");
          });
          attached = true;
        } else {
          until(attached);
          comm.allreduce("x", memory(comm).floats).wait();
        }
        still_works(comm);
        until(called);
        comm.barrier_blocking();
      },
      [&](Options& options) {
        options.log = [&](LogLevel, std::string_view line) {
          const std::lock_guard lock(mutex);
          lines.emplace_back(line);
        };
      });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("a callback threw: oops; it was given up, all else goes on"),
            std::string::npos);
}

TEST_F(BadInput, WaitingInsideACallback) {
  // Rank 1 submits "x" only after rank 0 has attached its callback. Otherwise the callback would
  // run within then(), where it might wait. Rank 1 submits "y" only after the callback's wait for
  // it was refused.
  std::atomic<bool> attached{false}, refused{false}, ended{false};
  run_threads(2, [&](Communicator& comm) {
    std::vector<float> other(4, 1.0f);
    if (comm.rank() == 0) {
      comm.allreduce("x", memory(comm).floats).then([&](std::exception_ptr) {
        auto work = comm.allreduce("y", other, ReduceOp::sum);
        expect_error(ErrorCode::callback,
                     "waiting for \"y\" inside a callback would wait for itself; use then() to go "
                     "on when it is done",
                     [&] { work.wait(); });
        expect_error(ErrorCode::callback,
                     "\"z\": a blocking call inside a callback would wait for itself",
                     [&] { comm.allreduce_blocking("z", memory(comm).doubles); });
        work.then([&](std::exception_ptr) { ended = true; });
        refused = true;
      });
      attached = true;
      until(ended);
    } else {
      until(attached);
      comm.allreduce("x", memory(comm).floats).wait();
      until(refused);
      comm.allreduce("y", other, ReduceOp::sum).wait();
    }
    EXPECT_TRUE(comm.rank() == 1 || other[3] == 2.0f);
    still_works(comm);
  });
}

TEST_F(BadInput, UseAfterClose) {
  Work late;
  run_threads(2, [&](Communicator& comm) {
    if (comm.rank() == 0) late = comm.allreduce("never", memory(comm).floats);
    comm.barrier_blocking();
  });
  const auto error = test::error_of([&] { late.wait(); });
  EXPECT_TRUE(error.code() == ErrorCode::closed || error.code() == ErrorCode::peer_left)
      << error.what();
}

}  // namespace
}  // namespace tutti
