#include "tutti/base/private_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tutti/base/error.h"
#include "tutti/base/temporary_file.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uid_t kOther = 65534;

template <typename Call>
std::string refused(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return fmt::format("{}: {}", to_string(error.code()), error.what());
  }
  return "taken";
}

class PrivateFolderTest : public testing::Test {
 protected:
  std::string open() {
    return refused([&] { PrivateFolder{path_}; });
  }
  std::string read(const std::string& name) {
    return refused([&] { PrivateFolder(path_).read(name, 100); });
  }
  void make(mode_t mode) {
    std::filesystem::create_directory(path_);
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }
  void make_file(const std::string& name, mode_t mode) {
    std::ofstream(path_ + "/" + name) << "planted";
    ASSERT_EQ(::chmod((path_ + "/" + name).c_str(), mode), 0);
  }

  const test::ScratchFolder scratch_;
  const std::string path_ = scratch_.path() + "/folder";
};

TEST_F(PrivateFolderTest, KeepsWholeFilesOfOneUser) {
  const PrivateFolder folder(path_ + "//");
  EXPECT_FALSE(folder.read("a", 10));
  folder.put("a", "1");
  folder.put("a", "22");
  EXPECT_FALSE(folder.put_once("a", "3"));
  EXPECT_TRUE(folder.put_once("b", "3"));
  EXPECT_EQ(PrivateFolder(path_).read("a", 10), "22");
  struct stat seen {};
  ASSERT_EQ(::stat((path_ + "/a").c_str(), &seen), 0);
  EXPECT_EQ(seen.st_mode & 07777, 0600u);
  EXPECT_THAT(refused([&] { folder.read("a", 1); }), HasSubstr(": it is too long"));
  folder.remove("a");
  EXPECT_FALSE(folder.read("a", 10));
}

TEST_F(PrivateFolderTest, OneThatWasRemovedIsToldAsSuch) {
  const PrivateFolder folder(path_);
  std::filesystem::remove_all(path_);
  const auto expect_error = [&](const std::string& what, const std::function<void()>& call) {
    test::expect_error(ErrorCode::unavailable, path_ + " failed: cannot " + what + ": ", call);
  };
  expect_error("read from it, it was removed", [&] { folder.read("a", 10); });
  expect_error("write into it", [&] { folder.put("a", "1"); });
  expect_error("write into it", [&] { folder.put_once("a", "1"); });
}

TEST_F(PrivateFolderTest, OneThatOthersMayReadIsTaken) {
  make(0755);
  EXPECT_EQ(open(), "taken");
}

TEST_F(PrivateFolderTest, RefusesWhatOthersMayWriteInto) {
  for (const mode_t mode : {0777, 0770, 0702, 01777}) {
    make(mode);
    EXPECT_THAT(open(), AllOf(HasSubstr("authentication"), HasSubstr(path_),
                              HasSubstr(fmt::format("folder of user {}", ::geteuid())),
                              HasSubstr(fmt::format("mode {:04o},", mode)),
                              HasSubstr("Name a folder that does not exist yet")));
  }
}

TEST_F(PrivateFolderTest, RefusesAnotherUsersFolder) {
  make(0700);
  if (::chown(path_.c_str(), kOther, kOther) != 0) GTEST_SKIP() << "only root gives folders away";
  EXPECT_THAT(open(), AllOf(HasSubstr("authentication"), HasSubstr("folder of user 65534")));
}

TEST_F(PrivateFolderTest, RefusesALinkAndWhatIsNoFolder) {
  std::filesystem::create_directory(scratch_.path() + "/own");
  std::filesystem::create_symlink(scratch_.path() + "/own", path_);
  EXPECT_THAT(open(), AllOf(HasSubstr("authentication"), HasSubstr("symbolic link")));
  EXPECT_THAT(refused([&] { PrivateFolder{path_ + "/"}; }), HasSubstr("symbolic link"));
  std::filesystem::remove(path_);
  std::ofstream(path_.c_str()) << "file";
  EXPECT_THAT(open(), HasSubstr("is a file of user"));
}

// Files may have been in the folder before it was closed to others.
TEST_F(PrivateFolderTest, RefusesFilesThatOthersCouldHaveWritten) {
  make(0700);
  make_file("open", 0666);
  make_file("known", 0644);
  make_file("own", 0600);
  std::filesystem::create_symlink("own", path_ + "/link");
  ASSERT_EQ(::mkfifo((path_ + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(read("open"), AllOf(HasSubstr("authentication"), HasSubstr("mode 0666")));
  EXPECT_THAT(read("known"), HasSubstr("mode 0644"));
  EXPECT_THAT(read("link"), HasSubstr("symbolic link"));
  EXPECT_THAT(read("pipe"), HasSubstr("special file"));
  EXPECT_EQ(read("own"), "taken");
  EXPECT_THAT(refused([&] { PrivateFolder(path_).lock("open", Deadline::after(1)); }),
              HasSubstr("authentication"));
  if (::chown((path_ + "/own").c_str(), kOther, kOther) == 0) {
    EXPECT_THAT(read("own"), HasSubstr("file of user 65534"));
  }
}

// Another user who may write to the parent folder can rename this folder and put his own in its
// place.
TEST_F(PrivateFolderTest, StaysWithTheFolderThatWasLookedAt) {
  const PrivateFolder folder(path_);
  std::filesystem::rename(path_, path_ + ".away");
  make(0777);
  make_file("secret", 0600);
  EXPECT_FALSE(folder.read("secret", 100));
  EXPECT_THAT(open(), HasSubstr("authentication"));
}

TEST_F(PrivateFolderTest, LocksOneAtATime) {
  const PrivateFolder folder(path_);
  auto held = folder.lock("lock", Deadline::after(30));
  EXPECT_THAT(refused([&] { folder.lock("lock", Deadline::after(0.05)); }),
              HasSubstr("another process holds the lock"));
  held.reset();
  folder.lock("lock", Deadline::after(30));
}

// A crash on any host leaves such files, because many hosts may share the file system of the
// folder.
TEST_F(PrivateFolderTest, WhatACrashLeftUnderAnyNameHarmsNobody) {
  const PrivateFolder folder(path_);
  char host[64] = "";
  ::gethostname(host, sizeof host - 1);
  for (int serial = 0; serial < 1000; ++serial)
    make_file(fmt::format(".{}.{}.{}", host, ::getpid(), serial), 0600);
  folder.put("a", "1");
  EXPECT_EQ(folder.read("a", 10), "1");
  EXPECT_TRUE(folder.put_once("b", "2"));
}

TEST_F(PrivateFolderTest, ATemporaryNameThatIsTakenIsPassedOver) {
  make(0700);
  make_file("aside.1", 0600);
  make_file("aside.2", 0600);
  int drawn = 0;
  const auto draw = [&] { return std::to_string(++drawn); };
  const auto made = make_temporary_file(AT_FDCWD, path_ + "/aside.", "", 0600, draw);
  EXPECT_EQ(made.name, path_ + "/aside.3");
  EXPECT_TRUE(made.file);
  const auto full =
      make_temporary_file(AT_FDCWD, path_ + "/aside.", "", 0600, [] { return std::string("1"); });
  EXPECT_FALSE(full.file);
  EXPECT_EQ(full.error, EEXIST);
}

// Containers of one host may share its name, and the first process of each has the id 1.
TEST_F(PrivateFolderTest, ProcessesOfOneHostNameAndOneNumberWriteAtOnce) {
  const PrivateFolder folder(path_);
  constexpr int kProcesses = 4, kTimes = 300;
  const auto write = [&](int own) {
    try {
      for (int i = 0; i < kTimes; ++i) folder.put(fmt::format("of {}", own), std::to_string(i));
      return ::getpid() == 1 ? 0 : 2;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  };
  std::vector<pid_t> outer;
  for (int own = 0; own < kProcesses; ++own) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::unshare(CLONE_NEWPID) != 0) ::_exit(3);
      const pid_t first = ::fork();
      if (first == 0) ::_exit(write(own));
      int status = 0;
      ::waitpid(first, &status, 0);
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    outer.push_back(child);
  }
  int refused = 0;
  for (const pid_t child : outer) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3)
      ++refused;
    else
      EXPECT_EQ(status, 0);
  }
  if (refused > 0) GTEST_SKIP() << "this process may not make PID namespaces";
  for (int own = 0; own < kProcesses; ++own)
    EXPECT_EQ(folder.read(fmt::format("of {}", own), 10), std::to_string(kTimes - 1));
}

}  // namespace
}  // namespace tutti
