// Options from the environment of a process: variables of launchers, secrets, and variables that
// the program itself has set before.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "tests/support/ports.h"
#include "tests/support/scratch_folder.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/settings/store_options.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns what `call` prints in a process with exactly this environment, or the error that it ends
// with.
std::string in_process(const Environment& environment, const std::function<std::string()>& call) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::clearenv();
    for (const auto& [variable, value] : environment) ::setenv(variable.c_str(), value.c_str(), 1);
    std::string text;
    try {
      text = call();
    } catch (const Error& error) {
      text = std::string("error: ") + error.what();
    }
    const auto written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  const Descriptor reader(ends[0]);
  std::string text;
  char bytes[256];
  for (ssize_t got; (got = ::read(reader.get(), bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<size_t>(got));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return text;
}

std::string summary(const Options& options) {
  return options.launcher + " " + std::to_string(options.rank) + "/" +
         std::to_string(options.size) + " " + options.store + " " + options.secret;
}

TEST(FromEnvironment, AloneIsOneRank) {
  EXPECT_EQ(in_process({}, [] { return summary(Options::from_environment()); }), "none 0/1  ");
}

TEST(FromEnvironment, TakesTheSecretOut) {
  const Environment environment = {{"TUTTI_RANK", "1"},
                                   {"TUTTI_SIZE", "2"},
                                   {"TUTTI_STORE", "tcp://127.0.0.1:1"},
                                   {"TUTTI_SECRET", "hush"}};
  EXPECT_EQ(in_process(environment,
                       [] {
                         const auto first = Options::from_environment();
                         EXPECT_EQ(first.sources.at("TUTTI_SECRET"), "environment");
                         if (::getenv("TUTTI_SECRET")) return std::string("still there");
                         return summary(Options::from_environment());
                       }),
            "tutti-run 1/2 tcp://127.0.0.1:1 hush");
  auto missing = environment;
  missing.erase("TUTTI_SECRET");
  EXPECT_EQ(in_process(missing, [] { return summary(Options::from_environment()); }),
            "error: TUTTI_STORE=tcp://127.0.0.1:1 needs a secret, but TUTTI_SECRET is missing (any "
            "text, the same on every rank)");
}

// /proc/self/environ shows the memory of variables even after they were unset.
TEST(FromEnvironment, LeavesNoSecretInTheMemoryOfTheEnvironment) {
  const Environment environment = {
      {"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}, {"TUTTI_SECRET", "hush"}};
  EXPECT_EQ(in_process(environment,
                       [] {
                         const char* value = ::getenv("TUTTI_SECRET");
                         const auto options = Options::from_environment();
                         return options.secret + "," + std::string(value, 4);
                       }),
            std::string("hush,\0\0\0\0", 9));
}

TEST(FromEnvironment, ReadsTheSecretFromADescriptor) {
  const auto secret_from = [](const std::string& descriptor) {
    return in_process({{"TUTTI_SECRET_FD", descriptor}}, [&] {
      const auto options = Options::from_environment();
      if (::getenv("TUTTI_SECRET_FD")) return std::string("still there");
      const int number = std::stoi(descriptor);
      return options.secret + (::fcntl(number, F_GETFD) < 0 ? " closed" : " open");
    });
  };
  const Descriptor file(::memfd_create("secret", 0));
  ASSERT_EQ(::write(file.get(), "abc", 3), 3);
  const auto number = std::to_string(file.get());
  EXPECT_EQ(secret_from(number), "abc closed");
  EXPECT_EQ(secret_from(number), "abc closed");  // read from the start, also by a second program

  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "defg", 4), 4);
  ::close(ends[1]);
  EXPECT_EQ(secret_from(std::to_string(ends[0])), "defg closed");
  EXPECT_THAT(secret_from(std::to_string(ends[0])),
              HasSubstr("held 0 bytes, but a secret has 1 to "));  // it was read already
  ::close(ends[0]);

  EXPECT_THAT(secret_from("999"), HasSubstr("TUTTI_SECRET_FD=999 cannot be read"));
  EXPECT_THAT(secret_from("x"), HasSubstr("TUTTI_SECRET_FD=x is not a descriptor"));
}

TEST(FromEnvironment, AFolderHoldsTheSecretToo) {
  const std::string folder = testing::TempDir() + "tutti_options_" + std::to_string(::getpid());
  const auto rank = [&](const char* number) {
    return in_process(
        {{"TUTTI_RANK", number}, {"TUTTI_SIZE", "2"}, {"TUTTI_STORE", "file://" + folder}},
        [] { return Options::from_environment().secret; });
  };
  const auto secret = rank("1");
  EXPECT_EQ(secret.size(), 64u);
  EXPECT_EQ(rank("0"), secret);
  std::filesystem::remove_all(folder);
}

// Another user creates the folder first and plants a secret that he knows.
TEST(FromEnvironment, ASecretThatAnotherUserCouldPlantIsRefused) {
  const test::ScratchFolder scratch;
  const auto folder = scratch.path() + "/job";
  const auto secret = [&] {
    return in_process(
        {{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "2"}, {"TUTTI_STORE", "file://" + folder}},
        [] { return Options::from_environment().secret; });
  };
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/kjob%2fsecret") << "planted";
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  std::filesystem::permissions(folder + "/kjob%2fsecret", std::filesystem::perms(0644));
  EXPECT_THAT(secret(), AllOf(HasSubstr(folder), HasSubstr("mode 0777")));
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  EXPECT_THAT(secret(), AllOf(HasSubstr(folder + "/kjob%2fsecret"), HasSubstr("mode 0644")));
  std::filesystem::permissions(folder + "/kjob%2fsecret", std::filesystem::perms::owner_read);
  EXPECT_EQ(secret(), "planted");  // the own user's secret
  if (::chown(folder.c_str(), 65534, 65534) == 0) {
    EXPECT_THAT(secret(), HasSubstr("folder of user 65534"));
  }
}

// Expects that both ranks meet at rank 0's store, wherever the launcher put it.
void expect_meeting(const Environment& base, const char* rank_variable,
                    const char* local_variable) {
  int gate[2];  // rank 0 lives until this pipe is closed
  ASSERT_EQ(::pipe(gate), 0);
  auto environment = base;
  environment[rank_variable] = environment[local_variable] = "0";
  const pid_t zero = ::fork();
  if (zero == 0) {
    ::close(gate[1]);
    const auto text = in_process(environment, [&] {
      const auto options = Options::from_environment();
      char byte;
      return ::read(gate[0], &byte, 1) == 0 ? "served " + options.store : std::string("cut off");
    });
    ::_exit(text.starts_with("served tcp://") ? 0 : 1);
  }
  ::close(gate[0]);
  environment[rank_variable] = environment[local_variable] = "1";
  EXPECT_EQ(in_process(environment,
                       [] {
                         const auto options = Options::from_environment();
                         const auto colon = options.store.rfind(':');
                         const auto store =
                             connect_tcp_store(options.store.substr(6, colon - 6),
                                               std::stoi(options.store.substr(colon + 1)),
                                               options.secret, Deadline::after(20));
                         return std::to_string(store->add("counter", 5));
                       }),
            "5");
  ::close(gate[1]);
  int status = 1;
  ::waitpid(zero, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(FromEnvironment, TorchrunsRanksMeet) {
  expect_meeting({{"RANK", ""},
                  {"WORLD_SIZE", "2"},
                  {"LOCAL_RANK", ""},
                  {"LOCAL_WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"MASTER_PORT", test::own_port()}},
                 "RANK", "LOCAL_RANK");
}

TEST(FromEnvironment, SlurmsRanksMeetByAFile) {
  const std::string home = testing::TempDir() + "tutti_home_" + std::to_string(::getpid());
  std::filesystem::create_directory(home);
  expect_meeting({{"HOME", home},
                  {"SLURM_JOB_ID", "7"},
                  {"SLURM_STEP_ID", "0"},
                  {"SLURM_NODEID", "0"},
                  {"SLURM_STEP_NUM_TASKS", "2"},
                  {"SLURM_STEP_TASKS_PER_NODE", "2"}},
                 "SLURM_PROCID", "SLURM_LOCALID");
  std::filesystem::remove_all(home);
}

TEST(FromEnvironment, SaysWhatIsMissing) {
  const auto line = [](const Environment& environment) {
    return in_process(environment, [] { return summary(Options::from_environment()); });
  };
  EXPECT_THAT(line({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}),
              HasSubstr("error: PMI started this process, but PMI_FD is missing"));
  EXPECT_THAT(line({{"TUTTI_RANKS", "0"}}), HasSubstr("did you mean TUTTI_RANK?"));
  EXPECT_THAT(line({{"TUTTI_SECRET", ""}}),
              HasSubstr("TUTTI_SECRET= is empty; set it to any text"));
}

// Rank 1 of 2 under tutti-run.
const Environment kRankOfTwo = {{"TUTTI_RANK", "1"},
                                {"TUTTI_SIZE", "2"},
                                {"TUTTI_LOCAL_RANK", "1"},
                                {"TUTTI_LOCAL_SIZE", "2"},
                                {"TUTTI_STORE", "tcp://127.0.0.1:1"},
                                {"TUTTI_SECRET", "hush"}};

std::string completed(const Environment& environment, const Options& given) {
  return in_process(environment, [&] { return summary(complete_options(given)); });
}

TEST(CompleteOptions, OptionsInCodeAreNoReasonToForgetTheLauncher) {
  EXPECT_EQ(completed(kRankOfTwo, {.backend = "tcp"}), "tutti-run 1/2 tcp://127.0.0.1:1 hush");
  EXPECT_EQ(completed(kRankOfTwo, {.store = "tcp://here:2"}), "tutti-run 1/2 tcp://here:2 hush");
  EXPECT_EQ(completed(kRankOfTwo, {.secret = "own"}), "tutti-run 1/2 tcp://127.0.0.1:1 own");
  EXPECT_EQ(completed({}, {.backend = "tcp"}), "none 0/1  ");
}

TEST(CompleteOptions, TheProgramCountsBeforeTheEnvironmentFieldByField) {
  auto environment = kRankOfTwo;
  environment.merge(Environment{{"TUTTI_BACKEND", "shm"},
                                {"TUTTI_FUSION_BYTES", "8M"},
                                {"TUTTI_REPLAY", "0"},
                                {"TUTTI_CACHE_CAPACITY", "7"}});
  const auto told = [&](const std::function<Options()>& make) {
    return in_process(environment, [&] {
      const auto o = make();
      return fmt::format("{} {} {} {}", o.backend, o.fusion_bytes, o.replay, o.cache_capacity);
    });
  };
  EXPECT_EQ(told([] { return complete_options({.backend = "tcp", .cache_capacity = 9}); }),
            "tcp 8388608 false 9");
  // A field with its default value counts as unset, unless its source is noted or the options came
  // from the environment.
  EXPECT_EQ(told([] { return complete_options({.backend = "auto", .replay = true}); }),
            "shm 8388608 false 7");
  EXPECT_EQ(told([] {
              return complete_options({.replay = true, .sources = {{"TUTTI_REPLAY", "program"}}});
            }),
            "shm 8388608 true 7");
  EXPECT_EQ(told([] {
              auto options = Options::from_environment();
              options.replay = true;
              return complete_options(options);
            }),
            "shm 8388608 true 7");
  EXPECT_EQ(told([] { return complete_options(Options::thread_rank(0, 1, nullptr)); }),
            "auto 4194304 true 4096");
}

TEST(CompleteOptions, APlaceInCodeIsNotTheLaunchers) {
  EXPECT_EQ(completed(kRankOfTwo, {.size = 1}), "explicit 0/1  hush");
  EXPECT_EQ(completed(kRankOfTwo, {.rank = 2, .size = 3}), "explicit 2/3 tcp://127.0.0.1:1 hush");
  EXPECT_EQ(completed(kRankOfTwo, {.rank = 0, .size = 3, .store = "tcp://here:2"}),
            "explicit 0/3 tcp://here:2 hush");
  // If only the rank is given, the size is the launcher's, if there is one.
  EXPECT_EQ(completed(kRankOfTwo, {.rank = 0}), "tutti-run 0/2 tcp://127.0.0.1:1 hush");
  EXPECT_THAT(completed({}, {.rank = 2}), HasSubstr("rank 2 is not a rank of 1"));
  EXPECT_EQ(in_process(kRankOfTwo,
                       [] {
                         const auto options = options_in_store(2, 3, make_memory_store());
                         return summary(complete_options(options));
                       }),
            "explicit 2/3  hush");
}

TEST(CompleteOptions, AStoreWithoutARankIsRefused) {
  const auto* expected =
      "error: the program gives a store, but nothing says which rank this is: no launcher started "
      "this process, and rank and size are missing";
  EXPECT_EQ(completed({}, {.store = "file:///folder"}), expected);
  EXPECT_EQ(completed({}, {.store_object = make_memory_store()}), expected);
}

TEST(CompleteOptions, GarbageIsRefusedWhereItWouldNotCount) {
  auto environment = kRankOfTwo;
  environment["TUTTI_CACHE_CAPACITY"] = "many";
  EXPECT_THAT(completed(environment, {.size = 1, .cache_capacity = 9}),
              HasSubstr("TUTTI_CACHE_CAPACITY=many is not a number"));
}

TEST(FromEnvironment, TheUsersCacheIsWhereItsVariablesSay) {
  const auto folder = [](const std::map<std::string, std::string>& environment) {
    return in_process(environment, [] { return Options::from_environment().probe_folder; });
  };
  EXPECT_EQ(folder({{"HOME", "/home/ann"}}), "/home/ann/.cache/tutti");
  EXPECT_EQ(folder({{"HOME", "/home/ann"}, {"XDG_CACHE_HOME", "/cache"}}), "/cache/tutti");
  EXPECT_EQ(folder({{"HOME", "/home/ann"}, {"XDG_CACHE_HOME", "relative"}}),
            "/home/ann/.cache/tutti");
  EXPECT_EQ(folder({}), "");
}

}  // namespace
}  // namespace tutti
