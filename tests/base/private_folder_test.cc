#include "tutti/base/private_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tutti/base/error.h"

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
                              HasSubstr("Name a folder that is not there yet")));
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

// Files may have been there before the folder was closed to others.
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

// Whoever may write above it takes the folder away, and puts his own in its place.
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

}  // namespace
}  // namespace tutti
