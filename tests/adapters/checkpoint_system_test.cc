// Saving on systems with restrictions: file systems that cannot exchange two names (NFS), and a
// process that cannot start a thread.

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/adapters/checkpoint_state.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"

namespace {

// These settings hold for the thread that sets them.
thread_local int exchange_error = 0;
thread_local bool has_no_threads = false;
thread_local std::function<int(const char* from, const char* to)> before_rename;

}  // namespace

// Replaces the system's function, for the library too.
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) {
  if (flags != 0 && exchange_error != 0) {
    errno = exchange_error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

extern "C" int rename(const char* from, const char* to) {
  if (before_rename)
    if (const int error = before_rename(from, to); error != 0) {
      errno = error;
      return -1;
    }
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*function)(void*), void* argument) {
  static const auto kReal =
      reinterpret_cast<decltype(&::pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return has_no_threads ? EAGAIN : kReal(thread, attributes, function, argument);
}

namespace tutti {
namespace {

using test::CheckpointState;
namespace fs = std::filesystem;

class CheckpointSystem : public testing::Test {
 protected:
  // Saves `step` with the values of fill(filled).
  void save(int64_t step, int64_t filled, const CheckpointOptions& options = {}) const {
    test::run_threads(2, [&](Communicator& comm) {
      exchange_error = error_;
      before_rename = hook_;
      CheckpointState state(comm);
      state.fill(filled);
      CheckpointFolder(comm, folder(), options).save(step, state.placed());
    });
  }
  void expect_newest(int64_t step, int64_t filled) const {
    test::run_threads(3, [&](Communicator& comm) {
      CheckpointState state(comm);
      const auto loaded = CheckpointFolder(comm, folder()).load(state.placed());
      ASSERT_TRUE(loaded);
      EXPECT_EQ(loaded->step, step);
      EXPECT_EQ(state.wrong(filled), "");
    });
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder()))
      if (entry.path().filename() != ".lock") all.push_back(entry.path().filename());
    std::sort(all.begin(), all.end());
    return all;
  }
  std::string folder() const { return scratch_.path() + "/checkpoints"; }

  int error_ = 0;
  std::function<int(const char*, const char*)> hook_;

 private:
  const test::ScratchFolder scratch_;
};

using Names = std::vector<std::string>;

TEST_F(CheckpointSystem, AStepIsSavedAgainWhereNamesCannotBeExchanged) {
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP, 0}) {
    error_ = error;
    save(1, 10);
    save(1, 20 + error);
    expect_newest(1, 20 + error);
    EXPECT_EQ(names(), Names{"step-1"}) << error;
  }
}

// Between the two renames, the old checkpoint must still be found under one of its names.
TEST_F(CheckpointSystem, AWholeOneIsThereAtEveryMoment) {
  save(1, 10);
  error_ = EINVAL;
  int moments = 0;
  hook_ = [&](const char* from, const char* to) {
    EXPECT_TRUE(fs::exists(folder() + "/step-1/manifest.json") ||
                fs::exists(folder() + "/.step-1.replaced/manifest.json"))
        << from << " to " << to;
    ++moments;
    return 0;
  };
  save(1, 30);
  EXPECT_EQ(moments, 3);
  expect_newest(1, 30);
}

// A job that is killed between the renames leaves its draft, and the old checkpoint under the other
// name.
TEST_F(CheckpointSystem, AJobThatEndsBetweenTheRenamesLosesNothing) {
  const auto killed = [&] {
    fs::create_directory(folder() + "/.step-1.00000000.draft");
    fs::rename(folder() + "/step-1", folder() + "/.step-1.replaced");
  };
  save(1, 10);
  killed();
  expect_newest(1, 10);
  // The next save restores the old name, whether it saves the same step or another one.
  save(2, 20);
  expect_newest(2, 20);
  EXPECT_EQ(names(), (Names{"step-1", "step-2"}));
  fs::remove_all(folder() + "/step-2");
  killed();
  save(1, 40, {.keep = 1});
  expect_newest(1, 40);
  EXPECT_EQ(names(), Names{"step-1"});
}

// A job that is killed after the renames leaves an old checkpoint, which must not come back.
TEST_F(CheckpointSystem, WhatWasReplacedDoesNotComeBack) {
  save(1, 10);
  fs::copy(folder() + "/step-1", folder() + "/.step-1.replaced", fs::copy_options::recursive);
  save(2, 20, {.keep = 1});
  expect_newest(2, 20);
  EXPECT_EQ(names(), Names{"step-2"});
}

TEST_F(CheckpointSystem, ARenameThatFailsPutsTheOldOneBack) {
  save(1, 10);
  error_ = EINVAL;
  hook_ = [](const char* from, const char*) {
    return std::string(from).ends_with(".draft") ? EIO : 0;
  };
  test::run_threads(2, [&](Communicator& comm) {
    exchange_error = error_;
    before_rename = hook_;
    CheckpointState state(comm);
    state.fill(30);
    test::expect_error(ErrorCode::io, "cannot rename \"",
                       [&] { CheckpointFolder(comm, folder()).save(1, state.placed()); });
  });
  expect_newest(1, 10);
  EXPECT_EQ(names(), Names{"step-1"});
  error_ = EIO;
  test::run_threads(2, [&](Communicator& comm) {
    exchange_error = error_;
    CheckpointState state(comm);
    test::expect_error(ErrorCode::io, "cannot exchange \"",
                       [&] { CheckpointFolder(comm, folder()).save(1, state.placed()); });
  });
}

// The rank without a thread writes before it returns; the other ranks do not wait for ever.
TEST_F(CheckpointSystem, OneRankWithoutAThreadSavesAllTheSame) {
  for (const int without : {0, 1, 2})
    test::run_threads(3, [&](Communicator& comm) {
      CheckpointState state(comm);
      CheckpointFolder checkpoints(comm, folder());
      state.fill(without);
      has_no_threads = comm.rank() == without;
      checkpoints.save_in_background(without, state.placed());
      has_no_threads = false;
      checkpoints.wait();
      state.fill(50);
      EXPECT_EQ(checkpoints.load(state.placed())->step, without);
      EXPECT_EQ(state.wrong(without), "");
    });
}

}  // namespace
}  // namespace tutti
