#include "tutti/backends/network/network_record.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tutti/base/error.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

constexpr NetworkFigures kTwoLinks{{25.5, 1180}, LinkFigures{3.25, 4100}};
constexpr NetworkFigures kOneLink{{100, 117.5}, {}};

class NetworkRecordTest : public testing::Test {
 protected:
  std::string content() const {
    std::ifstream stream(file_);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void damage(const std::string& text) const { std::ofstream(file_) << text; }
  std::string refusal(ErrorCode code) const {
    return test::refusal([&] { record_.find("a"); }, code);
  }

  const ScratchFolder folder_;
  const std::string file_ = folder_.path() + "/new/folder/networks";
  const NetworkRecord record_{file_};
};

TEST_F(NetworkRecordTest, GivesBackWhatWasSaved) {
  EXPECT_EQ(record_.find("a"), std::nullopt);
  record_.save("a", kTwoLinks);
  record_.save("b", kOneLink);
  EXPECT_EQ(record_.find("a"), kTwoLinks);
  EXPECT_EQ(record_.find("b"), kOneLink);
  EXPECT_EQ(record_.find("c"), std::nullopt);
  record_.save("a", kOneLink);
  EXPECT_EQ(record_.find("a"), kOneLink);
  EXPECT_EQ(content(), "b between=100,117.5\na between=100,117.5\n");
}

TEST_F(NetworkRecordTest, IsForItsOwnerAloneAndLeavesNothingElse) {
  record_.save("a", kTwoLinks);
  struct stat status {};
  ASSERT_EQ(::stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const std::filesystem::directory_iterator entries(std::filesystem::path(file_).parent_path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST_F(NetworkRecordTest, ForgetsTheOldestNetworkFirst) {
  for (size_t i = 0; i < NetworkRecord::kMostLines + 2; ++i)
    record_.save(fmt::format("network{}", i), kTwoLinks);
  EXPECT_EQ(record_.find("network1"), std::nullopt);
  EXPECT_EQ(record_.find("network2"), kTwoLinks);
}

TEST_F(NetworkRecordTest, SaysWhereItIsDamagedAndIsThenWrittenAnew) {
  record_.save("a", kTwoLinks);
  for (const auto* text :
       {"a", "a between=", "a between=1", "a between=1,x\n", "a between=0,5\n", "a between=1,-5\n",
        "a between=nan,5\n", "a between=1,5 within=\n", "a between=1,5 within=1,5 more\n", "\n",
        "a between=1,5", "a between=1,5\n\n"}) {
    damage(text);
    EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr(file_ + " is damaged at line "))
        << text;
  }
  damage("b between=1,5\n" + std::string(100, '\0') + "\n");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("at line 2"));
  damage(std::string(1 << 20, 'x'));
  EXPECT_NE(refusal(ErrorCode::corrupt_data), "");
  record_.save("a", kOneLink);
  EXPECT_EQ(record_.find("a"), kOneLink);
}

TEST_F(NetworkRecordTest, SaysWhatItCannotReadOrWrite) {
  std::filesystem::create_directories(file_);  // a folder in the file's place
  EXPECT_THAT(refusal(ErrorCode::io), HasSubstr(file_ + " cannot be read (Is a directory)"));
  EXPECT_THROW(record_.save("a", kOneLink), Error);
  const NetworkRecord below_a_file("/dev/null/networks");
  test::expect_error(ErrorCode::io, "/dev/null/networks cannot be",
                     [&] { below_a_file.save("a", kOneLink); });
}

}  // namespace
}  // namespace tutti::test
