#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "tests/support/expect_error.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/core/launch/exchange.h"

namespace tutti {
namespace {

using test::error_of;
using testing::HasSubstr;

// The launcher's end of PMI_FD. It follows a script: it sends the bytes `answers[i]` after line i.
class PmiServer {
 public:
  explicit PmiServer(std::vector<std::string> answers) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    client_ = Descriptor(ends[0]);
    thread_ = std::thread([this, server = Descriptor(ends[1]), answers = std::move(answers)] {
      for (const auto& answer : answers) {
        std::string line;
        char byte;
        while (::recv(server.get(), &byte, 1, 0) == 1 && byte != '\n') line += byte;
        asked_.push_back(line);
        // Each answer is sent in two pieces, since a stream has no message boundaries.
        ::send(server.get(), answer.data(), answer.size() / 2, MSG_NOSIGNAL);
        ::send(server.get(), answer.data() + answer.size() / 2, answer.size() - answer.size() / 2,
               MSG_NOSIGNAL);
      }
    });
  }
  ~PmiServer() { finish(); }

  int descriptor() const { return client_.get(); }
  std::vector<std::string> finish() {
    client_.reset();
    if (thread_.joinable()) thread_.join();
    return asked_;
  }

 private:
  Descriptor client_;
  std::vector<std::string> asked_;
  std::thread thread_;
};

const std::string kHello = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
const std::string kSpace = "cmd=my_kvsname kvsname=kvs_1\n";

TEST(Pmi, RankZeroPutsAndAllGet) {
  PmiServer server({kHello, kSpace, "cmd=put_result rc=0 msg=success\n", "cmd=barrier_out\n",
                    "cmd=get_result rc=0 msg=success value=tcp://h:1,ab\n", "cmd=finalize_ack\n"});
  EXPECT_EQ(share_over_pmi(server.descriptor(), 0, "tcp://h:1,ab", Deadline::after(10)),
            "tcp://h:1,ab");
  EXPECT_THAT(server.finish(),
              testing::ElementsAre("cmd=init pmi_version=1 pmi_subversion=1", "cmd=get_my_kvsname",
                                   "cmd=put kvsname=kvs_1 key=tutti-meeting value=tcp://h:1,ab",
                                   "cmd=barrier_in", "cmd=get kvsname=kvs_1 key=tutti-meeting",
                                   "cmd=finalize"));
}

TEST(Pmi, OthersOnlyGet) {
  PmiServer server({kHello, kSpace, "cmd=barrier_out\n",
                    "cmd=get_result rc=0 msg=success value=x\n", "cmd=finalize_ack\n"});
  EXPECT_EQ(share_over_pmi(server.descriptor(), 1, "", Deadline::after(10)), "x");
}

TEST(Pmi, SaysWhatWentWrong) {
  const auto line = [](std::vector<std::string> answers) {
    PmiServer server(std::move(answers));
    return error_of([&] { share_over_pmi(server.descriptor(), 1, "", Deadline::after(10)); });
  };
  EXPECT_THAT(
      line({"HTTP/1.1 400 Bad Request\n"}).what(),
      HasSubstr("the launcher's PMI server answered \"HTTP/1.1 400 Bad Request\" to \"init"));
  EXPECT_EQ(line({"nonsense\n"}).code(), ErrorCode::corrupt_data);
  EXPECT_THAT(line({kHello, "cmd=my_kvsname rc=-1\n"}).what(),
              HasSubstr("the launcher's PMI server refused \""));
  EXPECT_EQ(line({kHello, "cmd=my_kvsname rc=-1\n"}).code(), ErrorCode::unavailable);
  EXPECT_THAT(line({kHello}).what(), HasSubstr("closed its connection"));
  EXPECT_THAT(line({std::string(10'000, 'x')}).what(),
              HasSubstr("the launcher's PMI server sent a line of more than 4096 bytes"));
  EXPECT_THAT(error_of([] { share_over_pmi(999, 0, "", Deadline::after(1)); }).what(),
              HasSubstr("PMI_FD=999 does not lead to the launcher: "));
}

TEST(Pmi, WaitsNoLongerThanTheDeadline) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Descriptor client(ends[0]), mute(ends[1]);
  EXPECT_EQ(error_of([&] { share_over_pmi(client.get(), 0, "", Deadline::after(0.05)); }).code(),
            ErrorCode::timeout);
}

TEST(Pmi, SurvivesGarbage) {
  const unsigned seed = 20261121;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 300; ++i) {
    std::string garbage(random() % 200, ' ');
    for (auto& c : garbage) c = "cmd=respont_i \n\0rc01"[random() % 20];
    PmiServer server({garbage + "\n", garbage + "\n"});
    error_of([&] { share_over_pmi(server.descriptor(), 1, "", Deadline::after(10)); });
  }
}

class PrivateFileTest : public testing::Test {
 protected:
  PrivateFileTest() : folder_(testing::TempDir() + "tutti_private_" + std::to_string(::getpid())) {}
  ~PrivateFileTest() override { std::filesystem::remove_all(folder_); }
  const std::string folder_;
};

TEST_F(PrivateFileTest, IsReadByOneUserOnlyAndRemoved) {
  {
    const PrivateFile file(folder_, "a", "text");
    EXPECT_EQ(read_private_file(folder_, "a", Deadline::after(30)), "text");
    struct stat status {};
    ASSERT_EQ(::stat((folder_ + "/a").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    ASSERT_EQ(::stat(folder_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(PrivateFileTest, ReplacesALeftover) {
  std::filesystem::create_directory(folder_);
  std::ofstream(folder_ + "/a") << "old";
  const PrivateFile file(folder_, "a", "new");
  EXPECT_EQ(read_private_file(folder_, "a", Deadline::after(30)), "new");
}

TEST_F(PrivateFileTest, IsWaitedFor) {
  auto reader = std::async(std::launch::async,
                           [&] { return read_private_file(folder_, "a", Deadline::after(20)); });
  const PrivateFile file(folder_, "a", "late");
  EXPECT_EQ(reader.get(), "late");
  const auto missing = error_of([&] { read_private_file(folder_, "b", Deadline::after(0.05)); });
  EXPECT_EQ(missing.code(), ErrorCode::timeout);
  EXPECT_THAT(missing.what(), HasSubstr(folder_ + "/b"));
}

TEST_F(PrivateFileTest, OthersFilesAreRefused) {
  const PrivateFile file(folder_, "a", "text");
  ASSERT_EQ(::chmod((folder_ + "/a").c_str(), 0644), 0);
  EXPECT_EQ(error_of([&] { read_private_file(folder_, "a", Deadline::after(1)); }).code(),
            ErrorCode::authentication);
  std::filesystem::create_symlink("/etc/passwd", folder_ + "/link");
  EXPECT_EQ(error_of([&] { read_private_file(folder_, "link", Deadline::after(1)); }).code(),
            ErrorCode::authentication);
}

TEST_F(PrivateFileTest, AFolderThatOthersMayWriteIntoIsRefused) {
  std::filesystem::create_directory(folder_);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  EXPECT_EQ(error_of([&] { PrivateFile(folder_, "a", "x"); }).code(), ErrorCode::authentication);
  EXPECT_EQ(error_of([&] { read_private_file(folder_, "a", Deadline::after(1)); }).code(),
            ErrorCode::authentication);
}

TEST_F(PrivateFileTest, SaysWhereItCannotWrite) {
  EXPECT_THAT(error_of([&] { PrivateFile("/proc/none", "a", "x"); }).what(),
              HasSubstr("/proc/none"));
}

}  // namespace
}  // namespace tutti
