#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <random>
#include <string>
#include <thread>

#include "tests/adapters/checkpoint_state.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/base/error.h"

namespace tutti::test {

/// Expects that the newest checkpoint in `folder` loads on `size` ranks with exact values, and is
/// of step `least` or later.
inline void newest_is_whole(const std::string& folder, int64_t least, int size) {
  const auto body = [&](Communicator& comm) {
    CheckpointState state(comm);
    const auto loaded = CheckpointFolder(comm, folder).load(state.placed());
    if (least > 0) {
      ASSERT_TRUE(loaded.has_value());
      EXPECT_GE(loaded->step, least);
    }
    if (loaded) {
      EXPECT_EQ(state.wrong(loaded->step), "");
    }
  };
  run_processes(size, body);
}

/// Returns a random time in microseconds, from much shorter than one save to longer than several.
inline int random_moment(std::mt19937& random) {
  return static_cast<int>(std::exp(std::uniform_real_distribution<>(5, 11)(random)));
}

/// A job saves again and again and is killed; the next job continues from the newest checkpoint.
inline void jobs_are_killed(int times, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const ScratchFolder scratch;
  int64_t whole = 0;  // the last step that a job reported as saved
  for (int i = 0; i < times && !testing::Test::HasFailure(); ++i) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t job = ::fork();
    if (job == 0) {
      run_threads(2, [&](Communicator& comm) {
        CheckpointState state(comm);
        CheckpointFolder checkpoints(comm, scratch.path());
        const auto loaded = checkpoints.load(state.placed());
        for (int64_t step = loaded ? loaded->step + 1 : 1;; ++step) {
          state.fill(step);
          checkpoints.save(step, state.placed());
          if (comm.rank() == 0 && ::write(ends[1], &step, sizeof step) < 0) ::_exit(1);
        }
      });
      ::_exit(1);
    }
    ::close(ends[1]);
    // Waits for the first save, since before it there is nothing to test.
    int64_t step = 0;
    if (::read(ends[0], &step, sizeof step) == static_cast<ssize_t>(sizeof step)) whole = step;
    std::this_thread::sleep_for(std::chrono::microseconds(random_moment(random)));
    ::kill(job, SIGKILL);
    int status = 0;
    ::waitpid(job, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the job ended by itself";
    while (::read(ends[0], &step, sizeof step) == static_cast<ssize_t>(sizeof step)) whole = step;
    ::close(ends[0]);
    newest_is_whole(scratch.path(), whole, 1 + i % 3);
  }
  EXPECT_GE(whole, times);
}

/// One rank of three ends while all save; the others must get its number in the error.
inline void ranks_are_lost(int times, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const ScratchFolder scratch;
  for (int i = 0; i < times && !testing::Test::HasFailure(); ++i) {
    const int lost = i % 3, moment = random_moment(random);
    run_processes(3, [&](Communicator& comm) {
      CheckpointState state(comm);
      CheckpointFolder checkpoints(comm, scratch.path());
      const auto loaded = checkpoints.load(state.placed());
      const int64_t first = loaded ? loaded->step + 1 : 1;
      std::thread goes;
      try {
        for (int64_t step = first; step < first + 10'000; ++step) {
          state.fill(step);
          checkpoints.save(step, state.placed());
          // The first checkpoint of this rank is complete by then, even if other ranks do not know
          // it yet.
          if (step == first && comm.rank() == lost)
            goes = std::thread([&] {
              std::this_thread::sleep_for(std::chrono::microseconds(moment));
              ::_exit(0);
            });
        }
        ADD_FAILURE() << "rank " << lost << " is lost and nobody noticed";
      } catch (const Error& error) {
        const std::string line = error.what();
        EXPECT_EQ(error.rank(), lost) << line;
        EXPECT_NE(line.find("is given up ("), line.npos) << line;
        EXPECT_NE(line.find("; the last whole one stays"), line.npos) << line;
      }
      if (goes.joinable()) goes.join();
    });
    newest_is_whole(scratch.path(), i + 1, 2);
  }
}

/// The disk of one rank is full after a random number of bytes.
inline void disks_are_full(int times, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const ScratchFolder scratch;
  run_processes(3, [&](Communicator& comm) {
    std::mt19937 random(seed);
    CheckpointState state(comm);
    CheckpointFolder checkpoints(comm, scratch.path());
    state.fill(1);
    checkpoints.save(1, state.placed());
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    for (int i = 0; i < times; ++i) {
      const int full = static_cast<int>(random() % 3);
      // The limit is smaller than every rank's file and than the manifest.
      const rlimit limit{random() % 1500, before.rlim_max};
      if (comm.rank() == full) ::setrlimit(RLIMIT_FSIZE, &limit);
      state.fill(2);
      const auto error = error_of([&] { checkpoints.save(2, state.placed()); });
      const std::string line = error.what();
      EXPECT_EQ(error.code(), ErrorCode::io) << line;
      EXPECT_EQ(error.rank(), full) << line;
      EXPECT_NE(line.find("cannot write \""), line.npos) << line;
      if (comm.rank() == full) ::setrlimit(RLIMIT_FSIZE, &before);
      const auto loaded = checkpoints.load(state.placed());
      EXPECT_EQ(loaded ? loaded->step : 0, 1);
      EXPECT_EQ(state.wrong(1), "");
    }
    state.fill(3);
    checkpoints.save(3, state.placed());
  });
  newest_is_whole(scratch.path(), 3, 2);
}

}  // namespace tutti::test
