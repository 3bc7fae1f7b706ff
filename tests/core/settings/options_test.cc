#include "tutti/core/settings/options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/support/ports.h"
#include "tests/support/scratch_folder.h"
#include "tutti/backends/backend.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/core/settings/option_table.h"
#include "tutti/core/settings/store_options.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Options read(const Environment& environment) {
  Options options;
  read_settings(environment, options);
  return options;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST(Settings, AreRead) {
  const auto options = read({{"TUTTI_JOB", "j"},
                             {"TUTTI_INTERFACE", "eth0"},
                             {"TUTTI_TCP_SOCKETS", "4"},
                             {"TUTTI_TCP_CONGESTION", "reno"},
                             {"TUTTI_HOST", "a"},
                             {"TUTTI_BACKEND", "tcp"},
                             {"TUTTI_BACKEND_PATH", "/a:/b c"},
                             {"TUTTI_ALGORITHMS", "allreduce:0-inf=ring"},
                             {"TUTTI_PROBE", "/a folder/networks"},
                             {"TUTTI_DETERMINISM", "rank_order"},
                             {"TUTTI_SEGMENT_BYTES", "256K"},
                             {"TUTTI_FUSION_BYTES", "64M"},
                             {"TUTTI_PARTITION_BYTES", "1G"},
                             {"TUTTI_CACHE_CAPACITY", "0"},
                             {"TUTTI_REPLAY", "0"},
                             {"TUTTI_CHECK_MEMORY", "1"},
                             {"TUTTI_MIXED_DEVICES", "1"},
                             {"TUTTI_REPLAY_AFTER", "7"},
                             {"TUTTI_CONNECT_TIMEOUT", "1.5"},
                             {"TUTTI_PEER_TIMEOUT", "2"},
                             {"TUTTI_OPERATION_TIMEOUT", "3"},
                             {"TUTTI_STALL_WARNING", "4"},
                             {"TUTTI_CLOSE_TIMEOUT", "0.25"},
                             {"TUTTI_TIMELINE", "run.json"},
                             {"TUTTI_LOG", "debug"},
                             {"TUTTI_STORE", "tcp://[::1]:4711"},
                             {"TUTTI_SERVE_STORE", "1"},
                             {"NO_TUTTI", "x"}});
  EXPECT_EQ(options.job, "j");
  EXPECT_EQ(options.network_interface, "eth0");
  EXPECT_EQ(options.tcp_sockets, 4);
  EXPECT_EQ(options.tcp_congestion, "reno");
  EXPECT_EQ(options.host, "a");
  EXPECT_EQ(options.backend, "tcp");
  EXPECT_EQ(backend_folders(options), (std::vector<std::string>{"/a", "/b c"}));
  EXPECT_EQ(options.algorithms, "allreduce:0-inf=ring");
  EXPECT_EQ(options.probe, "/a folder/networks");
  EXPECT_EQ(options.determinism, Determinism::rank_order);
  EXPECT_EQ(options.segment_bytes, 256 << 10);
  EXPECT_EQ(options.fusion_bytes, 64 << 20);
  EXPECT_EQ(options.partition_bytes, 1 << 30);
  EXPECT_EQ(options.cache_capacity, 0);
  EXPECT_FALSE(options.replay);
  EXPECT_TRUE(options.check_memory);
  EXPECT_TRUE(options.mixed_devices);
  EXPECT_EQ(options.replay_after, 7);
  EXPECT_EQ(options.connect_timeout, 1.5);
  EXPECT_EQ(options.peer_timeout, 2);
  EXPECT_EQ(options.operation_timeout, 3);
  EXPECT_EQ(options.stall_warning, 4);
  EXPECT_EQ(options.close_timeout, 0.25);
  EXPECT_EQ(options.timeline, "run.json");
  EXPECT_EQ(options.log_level, LogLevel::debug);
  EXPECT_EQ(options.store, "tcp://[::1]:4711");
  EXPECT_TRUE(options.serve_store);
}

TEST(Settings, RefuseGarbageInOneLine) {
  const auto line = [](const std::string& variable, const std::string& text) {
    return refusal([&] { read({{variable, text}}); });
  };
  EXPECT_EQ(line("TUTTI_FUSION_BYTES", "64MBB"),
            "TUTTI_FUSION_BYTES=64MBB is not a size (want digits and an optional K, M or G); see "
            "`tutti-run --options`.");
  EXPECT_EQ(line("TUTTI_DETERMINISM", "rank-order"),
            "TUTTI_DETERMINISM=rank-order is not one of fastest, run, rank_order; see `tutti-run "
            "--options`.");
  EXPECT_EQ(line("TUTTI_STORE", "localhost:80"),
            "TUTTI_STORE=localhost:80 is not the address of a store (want tcp://host:port or "
            "file:///folder); see `tutti-run --options`.");
  for (const auto& [variable, texts] : std::map<std::string, std::vector<std::string>>{
           {"TUTTI_RANK", {"", "-1", "1.5", "x", "99999999999"}},
           {"TUTTI_SIZE", {"0", "four"}},
           {"TUTTI_FUSION_BYTES", {"", "-1", "1T", "K", "1 M", "99999999G"}},
           {"TUTTI_BACKEND_PATH", {"plugins", "/a:", ":/a", "/a:./b"}},
           {"TUTTI_SEGMENT_BYTES", {"0", "1"}},
           {"TUTTI_REPLAY", {"", "yes", "2", "true"}},
           {"TUTTI_REPLAY_AFTER", {"0"}},
           {"TUTTI_TCP_SOCKETS", {"0", "65", "two"}},
           {"TUTTI_CONNECT_TIMEOUT", {"0", "-1", "inf", "nan", "1s", ""}},
           {"TUTTI_LOG", {"loud", "3", ""}},
           {"TUTTI_PROBE", {"", "on", "Auto", "networks", "./networks", "/folder/", "/a\n/b"}},
           {"TUTTI_STORE",
            {"", "tcp://", "tcp://h", "tcp://:1", "tcp://h:0", "tcp://h:65536", "tcp://h:x",
             "file://relative", "http://h:1"}}})
    for (const auto& text : texts)
      EXPECT_THAT(line(variable, text), HasSubstr(variable + "=" + text + " is not")) << text;
}

TEST(Settings, SayWhereFiguresOfTheNetworkAreKept) {
  Options options{.rank = 0, .size = 1};
  options.probe_folder = "/cache/tutti";
  EXPECT_EQ(probe_settings(options).mode, Probe::Mode::when_unknown);
  EXPECT_EQ(probe_settings(options).file, "/cache/tutti/networks");
  options.probe = "always";
  EXPECT_EQ(probe_settings(options).mode, Probe::Mode::always);
  EXPECT_EQ(probe_settings(options).file, "/cache/tutti/networks");
  options.probe_folder.clear();
  EXPECT_EQ(probe_settings(options).file, "");
  options.probe = "/tmp/networks";
  EXPECT_EQ(probe_settings(options).mode, Probe::Mode::when_unknown);
  EXPECT_EQ(probe_settings(options).file, "/tmp/networks");
  options.probe = "off";
  EXPECT_EQ(probe_settings(options).mode, Probe::Mode::off);
  options.probe = "of";
  EXPECT_EQ(refusal([&] { check_options(options); }),
            "rank 0: TUTTI_PROBE=of is not one of auto, always, off or a file (want its absolute "
            "path, /...)");
}

TEST(Settings, WhatNcclIsToldIsReadWordByWord) {
  const auto line = [](const std::string& text) {
    return refusal([&] { read({{"TUTTI_NCCL_CONFIG", text}}); });
  };
  EXPECT_EQ(read({{"TUTTI_NCCL_CONFIG", "min_ctas=4,max_ctas=16,net_name=Socket"}}).nccl_config,
            "min_ctas=4,max_ctas=16,net_name=Socket");
  EXPECT_EQ(read({{"TUTTI_NCCL_CONFIG", ""}}).nccl_config, "");
  EXPECT_EQ(line("min_ctas=four"),
            "TUTTI_NCCL_CONFIG=min_ctas=four: min_ctas wants a number from 1 to 64, but got "
            "\"four\"; see docs/backends.md, nccl");
  for (const auto& [text, why] : std::map<std::string, std::string>{
           {"min_cta=4", "\"min_cta\" is no setting (did you mean min_ctas?)"},
           {"blocking=1", "\"blocking\" is no setting (want NAME=VALUE of net_name, cga_"},
           {"max_ctas", "max_ctas wants a number from 1 to 64, but got \"\""},
           {"max_ctas=65", "max_ctas wants a number from 1 to 64, but got \"65\""},
           {"max_ctas=4,,", "\"\" is no setting"},
           {"max_ctas=4,max_ctas=5", "max_ctas comes twice"},
           {"min_ctas=8,max_ctas=4", "min_ctas=8 is more than max_ctas=4"},
           {"net_name=", "net_name wants the name of one of NCCL's networks"},
           {"net_name=a b", "but got \"a b\""}})
    EXPECT_THAT(line(text), HasSubstr(why)) << text;
  Options options;
  options.rank = 1;
  options.size = 2;
  options.local_size = 2;
  options.store_object = make_memory_store();
  options.nccl_config = "split_share=2";
  EXPECT_EQ(refusal([&] { check_options(options); }),
            "rank 1: TUTTI_NCCL_CONFIG=split_share=2: split_share wants a number from 0 to 1, but "
            "got \"2\"; see docs/backends.md, nccl");
}

TEST(Settings, UnknownOnesOfferTheNearest) {
  EXPECT_EQ(refusal([] {
              read({{"TUTTI_FUSION_BITES", "1"}});
            }),
            "TUTTI_FUSION_BITES is no setting of Tutti (did you mean TUTTI_FUSION_BYTES?); see "
            "`tutti-run --options`.");
  EXPECT_EQ(refusal([] {
              read({{"TUTTI_ZZZZZZZZZZZZZZZZZ", "1"}});
            }),
            "TUTTI_ZZZZZZZZZZZZZZZZZ is no setting of Tutti; see `tutti-run --options`.");
}

TEST(Settings, DescribeThemselves) {
  auto options = read({{"TUTTI_FUSION_BYTES", "8M"}});
  options.replay = false;
  options.secret = "hush";
  const auto rows = describe_options(options);
  const auto row = [&](const std::string& variable) {
    return *std::find_if(rows.begin(), rows.end(),
                         [&](const OptionRow& each) { return each.variable == variable; });
  };
  EXPECT_EQ(row("TUTTI_FUSION_BYTES").default_value, "4M");
  EXPECT_EQ(row("TUTTI_FUSION_BYTES").value, "8M");
  EXPECT_EQ(row("TUTTI_FUSION_BYTES").source, "environment");
  EXPECT_EQ(row("TUTTI_FUSION_BYTES").unit, "bytes");
  EXPECT_EQ(row("TUTTI_REPLAY").source, "program");
  EXPECT_EQ(row("TUTTI_LOG").value, "warning");
  EXPECT_EQ(row("TUTTI_LOG").source, "default");
  EXPECT_EQ(row("TUTTI_SECRET").value, "(set)");
  for (const auto& each : rows) {
    EXPECT_FALSE(each.meaning.empty()) << each.variable;
    EXPECT_FALSE(each.unit.empty()) << each.variable;
    // What is printed can be read back.
    if (!each.default_value.empty()) {
      EXPECT_NO_THROW(read({{each.variable, each.default_value}})) << each.variable;
    }
  }
}

TEST(Settings, EveryVariableOfTheHeaderIsARow) {
  std::ifstream header(TUTTI_SOURCE_DIR "/core/settings/options.h");
  ASSERT_TRUE(header);
  const std::string text(std::istreambuf_iterator<char>(header), {});
  std::set<std::string> rows, named;
  for (const auto& row : describe_options({})) rows.insert(row.variable);
  for (size_t at = text.find("TUTTI_"); at != text.npos; at = text.find("TUTTI_", at + 1)) {
    const auto end = text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", at);
    if (const auto name = text.substr(at, end - at); name != "TUTTI_") named.insert(name);
  }
  EXPECT_EQ(named, rows);
}

TEST(Options, MustFitEachOther) {
  const auto line = [](const std::function<void(Options&)>& change) {
    auto options = Options::thread_rank(1, 2, make_memory_store());
    change(options);
    return refusal([&] { check_options(options); });
  };
  EXPECT_EQ(line([](Options&) {}), "accepted");
  EXPECT_EQ(line([](Options& o) { o.rank = 2; }), "rank 2 is no rank of 2 (want 0 to 1)");
  EXPECT_THAT(line([](Options& o) { o.rank = -1; }), HasSubstr("rank -1"));
  EXPECT_THAT(line([](Options& o) { o.size = 0; }), HasSubstr("0 ranks"));
  EXPECT_THAT(line([](Options& o) { o.local_rank = 2; }), HasSubstr("local rank 2"));
  EXPECT_THAT(line([](Options& o) { o.local_size = 3; }), HasSubstr("more than all 2"));
  EXPECT_THAT(line([](Options& o) { o.store_object.reset(); }), HasSubstr("there is no store"));
  EXPECT_THAT(line([](Options& o) { o.serve_store = true, o.store = "file:///x"; }),
              HasSubstr("not at \"file:///x\""));
  EXPECT_THAT(line([](Options& o) { o.segment_bytes = 0; }), HasSubstr("segment"));
  EXPECT_THAT(line([](Options& o) { o.tcp_sockets = 65; }), HasSubstr("not 65"));
  EXPECT_THAT(line([](Options& o) { o.job.clear(); }), HasSubstr("TUTTI_JOB"));
}

TEST(Options, ThreadRanksAreOneHost) {
  const auto store = make_memory_store();
  const auto options = Options::thread_rank(2, 3, store);
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.local_rank, 2);
  EXPECT_EQ(options.local_size, 3);
  EXPECT_EQ(options.store_object, store);
  EXPECT_THAT(refusal([&] { Options::thread_rank(3, 3, store); }), HasSubstr("rank 3"));
}

// What `call` prints in a process with exactly this environment, or the error that it ends with.
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

// /proc/self/environ shows the memory of variables that are no longer set.
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
  EXPECT_EQ(secret_from(number), "abc closed");  // from its start, also for a second program

  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "defg", 4), 4);
  ::close(ends[1]);
  EXPECT_EQ(secret_from(std::to_string(ends[0])), "defg closed");
  EXPECT_THAT(secret_from(std::to_string(ends[0])),
              HasSubstr("held 0 bytes, but a secret has 1 to "));  // used up
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

// Another user makes the folder first and leaves a secret that he knows.
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
  EXPECT_EQ(secret(), "planted");  // one's own
  if (::chown(folder.c_str(), 65534, 65534) == 0) {
    EXPECT_THAT(secret(), HasSubstr("folder of user 65534"));
  }
}

// Both ranks meet at rank 0's store, wherever the launcher put it.
void expect_meeting(const Environment& base, const char* rank_variable,
                    const char* local_variable) {
  int gate[2];  // rank 0 lives until it is closed
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
  EXPECT_THAT(line({{"TUTTI_SECRET", ""}}), HasSubstr("TUTTI_SECRET= is no secret"));
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
  // A field that says its default counts as unset, unless its source is noted, or the program began
  // with what the environment says.
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
  // One half of it is the launcher's, if there is one.
  EXPECT_EQ(completed(kRankOfTwo, {.rank = 0}), "tutti-run 0/2 tcp://127.0.0.1:1 hush");
  EXPECT_THAT(completed({}, {.rank = 2}), HasSubstr("rank 2 is no rank of 1"));
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

TEST(Settings, TheUsersCacheIsWhereItsVariablesSay) {
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
