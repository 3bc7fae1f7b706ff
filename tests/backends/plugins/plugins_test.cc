#include "tutti/backends/plugins.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/backends/conformance/backend_conformance.h"
#include "tests/backends/conformance/transport_conformance.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/core/tutti.h"

namespace tutti::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::string> kFolders = {TUTTI_TEST_PLUGINS};

// The plugin of examples/ passes the conformance suite like any other backend.
const BackendMaker kExample = {
    "unix_socket", [](int size) {
      return make_backends(find_backend("unix_socket", kFolders), size, [](Context& context) {
        context.executor.segment_bytes = kTestSegmentBytes;
      });
    }};
INSTANTIATE_TEST_SUITE_P(Example, BackendConformance, testing::Values(kExample));
INSTANTIATE_TEST_SUITE_P(Example, TransportConformance,
                         testing::Values(TransportMaker{
                             "unix_socket", "unix_socket", [](int size) {
                               return make_transports(find_backend("unix_socket", kFolders), size);
                             }}));

std::string refusal(std::string_view name, ErrorCode code,
                    const std::vector<std::string>& folders = kFolders) {
  return test::refusal([&] { find_backend(name, folders); }, code);
}

TEST(Plugins, AreRefusedInOneLine) {
  EXPECT_THAT(refusal("other_abi", ErrorCode::version),
              AllOf(HasSubstr("plugin ABI 7777"), HasSubstr(std::to_string(kBackendAbi)),
                    HasSubstr("build it again")));
  EXPECT_THAT(refusal("other_name", ErrorCode::corrupt_data),
              AllOf(HasSubstr("\"other_name\""), HasSubstr("\"somebody_else\"")));
  EXPECT_THAT(refusal("no_record", ErrorCode::corrupt_data), HasSubstr("no tutti_backend_plugin"));
  EXPECT_THAT(refusal("needs_more", ErrorCode::unavailable),
              AllOf(HasSubstr("libtutti_nowhere.so"), HasSubstr("install what it needs")));
}

TEST(Plugins, WhatIsNotThereIsNamedWithWhatIs) {
  EXPECT_THAT(refusal("unix_sockets", ErrorCode::unavailable),
              AllOf(HasSubstr("did you mean \"unix_socket\"?"), HasSubstr("memory"),
                    HasSubstr("libtutti_backend_unix_sockets.so"), HasSubstr(TUTTI_TEST_PLUGINS),
                    HasSubstr("TUTTI_BACKEND_PATH")));
  for (const auto* name : {"", "auto", "../plugins/unix_socket", "Unix_Socket", "unix_socket\n"})
    EXPECT_THAT(refusal(name, ErrorCode::unavailable), HasSubstr("there is no backend")) << name;
  EXPECT_THAT(refusal("unix_socket", ErrorCode::unavailable, {"/no/such/folder"}),
              HasSubstr("/no/such/folder"));
}

class DamagedPlugin : public testing::Test {
 protected:
  std::string write(const std::string& bytes) {
    std::ofstream(folder_.inside("libtutti_backend_broken.so"), std::ios::binary) << bytes;
    return refusal("broken", ErrorCode::corrupt_data, {folder_.path()});
  }
  const ScratchFolder folder_;
};

TEST_F(DamagedPlugin, IsAnErrorAndNoCrash) {
  std::ifstream stream(fs::path(TUTTI_TEST_PLUGINS) / "libtutti_backend_unix_socket.so",
                       std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  ASSERT_GT(whole.size(), 4096u);
  EXPECT_THAT(write(""), AllOf(HasSubstr("not a shared library"),
                               HasSubstr("; install it again, or remove it")));
  EXPECT_THAT(write("#!/bin/sh\n" + std::string(1000, 'x')), HasSubstr("not a shared library"));
  // The part of the file that the loader maps ends before the file does, because debug sections
  // follow.
  for (const size_t size : {1, 63, 64, 100, 1000, 4096})
    EXPECT_THAT(write(whole.substr(0, size)),
                testing::AnyOf(HasSubstr("is damaged: it was cut short"),
                               HasSubstr("not a shared library")))
        << size;
  // The file is whole again, but contains a backend with another name than the file's.
  EXPECT_THAT(write(whole), HasSubstr("\"unix_socket\""));
}

TEST(Plugins, AreListedOnceEachWithWhy) {
  const std::vector<std::string> folders = {"/no/such/folder", TUTTI_TEST_PLUGINS,
                                            TUTTI_TEST_PLUGINS};
  std::map<std::string, ListedBackend> found;
  for (auto& one : list_backends(folders)) {
    EXPECT_EQ(one.plugin == nullptr, !one.failure.empty()) << one.name;
    EXPECT_TRUE(found.emplace(one.name, one).second) << one.name;
  }
  for (const auto* name : {"memory", "shm", "tcp", "hierarchical"})
    EXPECT_EQ(found[name].file, "") << name;
  EXPECT_EQ(found["unix_socket"].plugin, &find_backend("unix_socket", kFolders));
  EXPECT_THAT(found["other_abi"].failure, HasSubstr("7777"));
  EXPECT_THAT(found["needs_more"].failure, HasSubstr("libtutti_nowhere.so"));
}

// One rank has the plugin, the other does not: both get the error immediately.
TEST(Plugins, ARankWithoutItIsNamedOnAllRanks) {
  const auto tune = [](Options& options) {
    options.backend = "unix_socket";
    if (options.rank == 0) options.backend_path = TUTTI_TEST_PLUGINS;
  };
  const auto heard = create_refusals(2, tune, ErrorCode::unavailable);
  EXPECT_THAT(heard[0], HasSubstr("rank 1: there is no backend \"unix_socket\""));
  EXPECT_THAT(heard[1], HasSubstr("there is no backend \"unix_socket\""));
}

TEST(Plugins, ServeACommunicator) {
  const auto body = [](Communicator& comm) {
    std::vector<float> values(1000, static_cast<float>(comm.rank()));
    comm.allreduce("values", values, ReduceOp::sum).wait();
    EXPECT_EQ(values, std::vector<float>(1000, 3.0f));
    EXPECT_EQ(comm.backend(), "unix_socket");
  };
  run_threads(3, body, [](Options& options) {
    options.backend = "unix_socket";
    options.backend_path = TUTTI_TEST_PLUGINS;
  });
}

// Returns the error that each of three ranks gets for an operation that fails on rank 0. `tune` may
// give a rank an observer.
std::vector<std::string> heard_of_failure(const Tune& tune) {
  std::vector<std::string> heard(3);
  run_threads(
      3,
      [&](Communicator& comm) {
        std::vector<float> values(1000, 1.0f);
        heard[static_cast<size_t>(comm.rank())] =
            error_of([&] { comm.allreduce("values", values).wait(Deadline::after(60)); }).what();
      },
      [&](Options& options) {
        options.backend = "fails_first";
        options.backend_path = TUTTI_TEST_PLUGINS;
        options.log = [](LogLevel, std::string_view) {};
        tune(options);
      });
  return heard;
}

// Rank 2 reports its fault after rank 0's operation has failed because of it: all ranks name rank
// 2.
TEST(Plugins, AFailureIsExplainedByTheFaultThatComesBehindIt) {
  const auto heard = heard_of_failure([](Options& options) {
    if (options.rank != 2) return;
    options.observer = [](std::string_view point) {
      if (point != "transfer") return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      throw std::runtime_error("no card");
    };
  });
  EXPECT_THAT(heard, testing::Each(HasSubstr("rank 2 cannot go on")));
}

TEST(Plugins, AFailureWithoutACauseIsAMistake) {
  EXPECT_THAT(heard_of_failure([](Options&) {}),
              testing::Each(AllOf(HasSubstr("rank 0: "), HasSubstr("failed in flight"),
                                  HasSubstr("please report it"))));
}

}  // namespace
}  // namespace tutti::test
