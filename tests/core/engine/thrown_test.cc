// A thread that runs the engine throws. Every rank gets the error immediately, whoever threw it.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <new>
#include <thread>

#include "tests/core/engine/at_once.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/core/arena.h"

namespace tutti {
namespace {

using test::error_at_once;
using test::kAtOnce;
using test::quiet;
using test::run_threads;
using testing::HasSubstr;

struct Thrown {
  const char* what;
  std::function<void()> raise;
  ErrorCode code;
  const char* text;
};

std::vector<Thrown> kinds() {
  return {{"runtime_error", [] { throw std::runtime_error("oops"); }, ErrorCode::internal, "oops"},
          {"bad_alloc", [] { throw std::bad_alloc(); }, ErrorCode::out_of_memory,
           "it ran out of memory"},
          {"int", [] { throw 7; }, ErrorCode::internal, "not a std::exception"},
          {"Error", [] { throw Error(ErrorCode::unavailable, "no card"); }, ErrorCode::unavailable,
           "no card"}};
}

// The observer throws in place of everything that may throw at its point: the library, the system
// or the user's code.
void throw_at(const std::string& point, const Thrown& thrown, int thrower, bool waits) {
  SCOPED_TRACE(fmt::format("{} at {} on rank {}, which {}", thrown.what, point, thrower,
                           waits ? "waits" : "does not wait"));
  std::atomic<bool> has_thrown{false};
  run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<float> a(1000, 1.0f), b(1000, 1.0f);
        const auto begin = Clock::now();
        const auto is_late = [&] {
          return std::chrono::duration<double>(Clock::now() - begin).count() > kAtOnce;
        };
        // One call may have ended well before the exception. Then a later call fails.
        std::optional<Error> error;
        for (int i = 0; !error && !is_late(); ++i) {
          try {
            Work first = comm.allreduce(fmt::format("a{}", i), a);
            Work second = comm.allreduce(fmt::format("b{}", i), b);
            while (!waits && !(first.done() && second.done()) && !is_late())
              std::this_thread::sleep_for(std::chrono::microseconds(100));
            first.wait();
            second.wait();
          } catch (const Error& caught) {
            error = caught;
          }
        }
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code(), thrown.code) << error->what();
        EXPECT_THAT(error->what(), HasSubstr(thrown.text));
        EXPECT_THAT(error->what(), HasSubstr(fmt::format("rank {} cannot go on", thrower)));
        EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kAtOnce);
        EXPECT_EQ(error_at_once([&] { comm.allreduce("d", a).wait(); }).code(), thrown.code);
        EXPECT_EQ(error_at_once([&] { comm.allreduce_blocking("e", a); }).code(), thrown.code);
      },
      [&](Options& options) {
        quiet(options);
        if (options.rank == thrower)
          options.observer = [&](std::string_view here) {
            if (here == point && !has_thrown.exchange(true)) thrown.raise();
          };
      });
}

TEST(Thrown, InTheEngineBreaksTheCommunicatorOnEveryRank) {
  for (const char* point : {"negotiation", "pack", "transfer", "idle"})
    for (const int thrower : {0, 1})
      for (const bool waits : {true, false})
        if (point != std::string("idle") || !waits)
          throw_at(point, kinds().front(), thrower, waits);
  for (const auto& thrown : kinds()) throw_at("pack", thrown, 1, true);
}

// Rank 1 has joined when the answer arrives that locks a plan. While rank 1 handles that answer, it
// launches the plan's first bucket with a veto, and fails. The error is rank 1's own failure,
// whatever it throws; rank 0's message is not damaged.
TEST(Thrown, WhileAnswersAreHandledIsNotTheSendersDoing) {
  const Thrown like_a_damaged_message{
      "an Error that damaged messages have too",
      [] { throw Error(ErrorCode::corrupt_data, "a damaged file"); }, ErrorCode::corrupt_data,
      "a damaged file"};
  for (const auto& kind : {kinds().front(), like_a_damaged_message}) {
    SCOPED_TRACE(kind.what);
    std::atomic<bool> is_armed{false}, has_thrown{false};
    run_threads(
        2,
        [&](Communicator& comm) {
          std::vector<float> values(1000, 1.0f);
          const auto error = error_at_once([&] {
            for (int step = 0; step < 3; ++step) {
              // Both requests of rank 1 have arrived when rank 0 submits. Rank 0 then answers with
              // the plan.
              Work work;
              if (comm.rank() == 1) work = comm.allreduce("x", values);
              if (comm.rank() == 1 && step == 2) {
                is_armed = true;
                static_cast<void>(comm.join());
              }
              if (comm.rank() == 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                work = comm.allreduce("x", values);
              }
              work.wait();
            }
            comm.allreduce("y", values).wait();
          });
          EXPECT_TRUE(has_thrown);
          EXPECT_EQ(error.code(), kind.code) << error.what();
          EXPECT_THAT(error.what(), HasSubstr(kind.text));
          EXPECT_THAT(error.what(), HasSubstr("rank 1 cannot go on"));
          EXPECT_THAT(error.what(), testing::Not(HasSubstr("an invalid message")));
        },
        [&](Options& options) {
          quiet(options);
          options.replay_after = 3;
          if (options.rank == 1)
            options.observer = [&](std::string_view point) {
              if (is_armed && point == "pack" && !has_thrown.exchange(true)) kind.raise();
            };
        });
  }
}

// The observer throws at every point, also while the engine ends.
TEST(Thrown, AgainAndAgain) {
  run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<float> a(1000, 1.0f);
        EXPECT_EQ(error_at_once([&] { comm.allreduce("a", a).wait(); }).code(),
                  ErrorCode::internal);
        EXPECT_EQ(error_at_once([&] { comm.allreduce("a", a).wait(); }).code(),
                  ErrorCode::internal);
      },
      [](Options& options) {
        quiet(options);
        options.observer = [](std::string_view point) {
          if (point != "rendezvous" && point != "connected") throw std::runtime_error("again");
        };
      });
}

TEST(Thrown, InALogSink) {
  // Rank 1 submits "a" only after rank 0 has attached its callback. Otherwise the callback would
  // run within then() and throw there.
  std::atomic<bool> attached{false};
  run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<float> a(100, 1.0f), b(100, 1.0f);
        EXPECT_TRUE(test::wait_until([&] { return comm.rank() == 0 || attached; }));
        auto work = comm.allreduce("a", a);
        if (comm.rank() == 0)
          work.then([](std::exception_ptr) { throw std::runtime_error("oops"); });
        attached = true;
        comm.allreduce("b", b, ReduceOp::sum).wait();
        EXPECT_EQ(b[0], 2.0f);
        work.wait();
        comm.barrier_blocking();
      },
      [](Options& options) {
        options.log = [](LogLevel, std::string_view) { throw std::runtime_error("full"); };
      });
}

// An update runs the user's code in the middle of a reduction: on a waiting thread, on the
// background thread, and within a blocking call.
void throw_in_update(const std::string& backend) {
  SCOPED_TRACE(backend);
  struct Update {
    bool throws;
    static void apply(void* self, int64_t, int64_t, const std::byte*) {
      if (static_cast<Update*>(self)->throws) throw std::runtime_error("no step today");
    }
  };
  const auto body = [](Communicator& comm) {
    Update update{comm.rank() == 1};
    GradientArena arena(comm, {{"w", {300'000}}, {"b", {1000}}}, {}, &Update::apply, &update);
    // If each rank updates everything after the reduction, the other rank has finished the first
    // step. Then its second step fails.
    const auto error = error_at_once([&] {
      for (int step = 0; step < 2; ++step) {
        for (const char* name : {"w", "b"}) arena.ready(name);
        arena.wait();
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_THAT(error.what(), HasSubstr("no step today"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  };
  run_threads(2, body, [&](Options& options) {
    quiet(options);
    if (!backend.empty()) options.algorithms = "allreduce:0-inf=" + backend;
  });
}

TEST(Thrown, InAFusedUpdate) {
  throw_in_update("");
  throw_in_update("ring");  // each rank updates everything after the reduction
}

}  // namespace
}  // namespace tutti
