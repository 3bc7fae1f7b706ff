#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/run_program.h"
#include "tutti/core/settings/version.h"

namespace tutti::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Said {
  int code = -1;
  std::string output, errors;
};

Said doctor(std::vector<std::string> words, const std::vector<std::string>& variables = {}) {
  words.insert(words.begin(), TUTTI_DOCTOR);
  Program program(words, variables);
  const int code = program.finish(60);
  return {code, program.output(), program.errors()};
}

std::map<std::string, json> backends_of(const json& all) {
  std::map<std::string, json> found;
  for (const auto& one : all["backends"]) found[one["name"]] = one;
  return found;
}

const std::string kPath = std::string("TUTTI_BACKEND_PATH=") + TUTTI_TEST_PLUGINS;

TEST(Doctor, TellsWhatWorksAndWhyTheRestDoesNot) {
  // Uses a separate folder, because other tutti-doctor processes may use the default one.
  const std::filesystem::path scratch =
      testing::TempDir() + "doctor_test_" + std::to_string(::getpid());
  std::filesystem::create_directory(scratch);
  const auto said = doctor({"--json", "--no-measure"}, {kPath, "TMPDIR=" + scratch.string()});
  ASSERT_EQ(said.code, 0) << said.errors;
  const auto all = json::parse(said.output);
  EXPECT_GE(all["cores"]["usable"], 1);
  EXPECT_GE(all["cores"]["present"], all["cores"]["usable"]);
  EXPECT_THAT(all["interfaces"].dump(), HasSubstr("127.0.0.1"));
  EXPECT_TRUE(all["gpus"].is_array());
  // There are GPUs, or one line with the reason and advice.
  const auto& cuda = all["cuda"];
  EXPECT_EQ(cuda["available"], !cuda["devices"].empty());
  if (cuda["available"]) {
    EXPECT_GT(cuda["devices"][0]["memory_bytes"], 0);
    EXPECT_THAT(cuda["version"], HasSubstr("driver"));
  } else {
    const auto why = cuda["failure"].get<std::string>();
    EXPECT_THAT(why, testing::AnyOf(HasSubstr("no GPU: "), HasSubstr("libtutti_device_cuda.so")));
    EXPECT_EQ(why.find('\n'), why.npos);
  }
  EXPECT_EQ(all["plugin_folders"], json::array({TUTTI_TEST_PLUGINS, all["library_folder"]}));

  auto backends = backends_of(all);
  const std::map<std::string, std::string> routes = {{"memory", "memory"},
                                                     {"shm", "shm"},
                                                     {"tcp", "tcp"},
                                                     {"hierarchical", "shm"},
                                                     {"unix_socket", "unix_socket"}};
  for (const auto& [name, route] : routes) {
    SCOPED_TRACE(name);
    const auto& one = backends[name];
    ASSERT_EQ(one["available"], true) << one.dump();
    EXPECT_EQ(one["route"], route);
    EXPECT_EQ(one["devices"], json::array({"cpu"}));
    EXPECT_THAT(one["serves"]["bf16"].dump(), HasSubstr("average"));
    EXPECT_THAT(one["serves"]["f32"].dump(), testing::Not(HasSubstr("band")));
    // The ranges cover all sizes without a gap.
    for (const auto& [kind, ranges] : one["choices"].items()) {
      json next = 0;
      for (const auto& range : ranges) {
        EXPECT_EQ(range["from"], next) << kind;
        EXPECT_NE(range["algorithm"], "") << kind;
        next = range["to"];
      }
      EXPECT_TRUE(next.is_null()) << kind;
    }
    EXPECT_FALSE(one.contains("latency_us"));
  }
  const std::map<std::string, std::string> failures = {
      {"other_abi", "plugin ABI 7777"},
      {"other_name", "somebody_else"},
      {"no_record", "tutti_backend_plugin"},
      {"needs_more", "libtutti_nowhere.so"},
      {"second_rank_fails", "rank 1 has no such device"},
      {"nccl", TUTTI_HAS_NCCL ? "GPU" : "libtutti_backend_nccl.so"}};
  for (const auto& [name, why] : failures) {
    EXPECT_EQ(backends[name]["available"], false) << name;
    EXPECT_THAT(backends[name]["failure"].get<std::string>(), HasSubstr(why));
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
  std::filesystem::remove_all(scratch);
}

TEST(Doctor, ShowsWhatTheSettingsChooseForEachSize) {
  const auto plain = doctor({"--no-measure", "--json"});
  ASSERT_EQ(plain.code, 0) << plain.errors;
  const auto choice = json::parse(plain.output)["choice"];
  EXPECT_EQ(choice["TUTTI_BACKEND"], "auto");
  EXPECT_EQ(choice["choices"]["allreduce"][0]["backend"], "shm");
  EXPECT_EQ(choice["choices"]["allreduce"][0]["algorithm"], "one_shot");

  const auto chosen = doctor({"--no-measure"}, {"TUTTI_BACKEND=tcp",
                                                "TUTTI_ALGORITHMS=allreduce:0-32k=shm/auto,"
                                                "1m-inf=unix_socket/ring",
                                                kPath});
  ASSERT_EQ(chosen.code, 0) << chosen.errors;
  EXPECT_THAT(chosen.output, HasSubstr("setting     TUTTI_BACKEND=tcp\n"));
  EXPECT_THAT(chosen.output, HasSubstr("chosen      2 ranks here: allreduce:0-32k=shm/one_shot,"
                                       "32k-1m=tcp/two_shot,1m-inf=unix_socket/ring\n"));
  EXPECT_THAT(chosen.output, HasSubstr("chosen      2 ranks here: broadcast:0-inf=tcp/"));

  // Without the plugin's folder only the choice fails; everything else is shown as before.
  const auto without =
      doctor({"--no-measure", "--json"}, {"TUTTI_ALGORITHMS=allreduce:0-inf=unix_sockets/ring"});
  EXPECT_EQ(without.code, 0);
  auto all = json::parse(without.output);
  EXPECT_THAT(all["choice"]["failure"].get<std::string>(),
              HasSubstr("TUTTI_ALGORITHMS=allreduce:0-inf=unix_sockets/ring: there is no backend"));
  auto before = json::parse(plain.output);
  for (auto* one : {&all, &before}) one->erase("choice");
  EXPECT_EQ(all, before);
}

TEST(Doctor, Measures) {
  for (const std::string name : {"memory", "shm", "tcp"}) {
    const auto said = doctor({"--json", "--backend", name});
    ASSERT_EQ(said.code, 0) << said.output << said.errors;
    auto backends = backends_of(json::parse(said.output));
    ASSERT_EQ(backends.size(), 1u);
    EXPECT_GT(backends[name]["latency_us"], 0.01);
    EXPECT_LT(backends[name]["latency_us"], 1e6);
    EXPECT_GT(backends[name]["bandwidth_gb_s"], 1e-4);
    EXPECT_LT(backends[name]["bandwidth_gb_s"], 1e3);
  }
}

TEST(Doctor, KnowsGloo) {
  if (!TUTTI_HAS_GLOO) GTEST_SKIP() << "backend gloo is not built here";
  const auto said = doctor({"--backend", "gloo"});
  ASSERT_EQ(said.code, 0) << said.output << said.errors;
  EXPECT_THAT(said.output, HasSubstr("\ngloo 0."));
  EXPECT_THAT(said.output, HasSubstr("transport   Gloo's TCP on 127.0.0.1"));
  EXPECT_THAT(said.output, HasSubstr("gloo_ring"));
  EXPECT_THAT(said.output, HasSubstr("us for 4 bytes"));
  const auto nowhere = doctor({"--backend", "gloo", "--no-measure"}, {"TUTTI_INTERFACE=eth99"});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_THAT(nowhere.output, HasSubstr("rank 0: TUTTI_INTERFACE=eth99 names no interface"));
  EXPECT_THAT(nowhere.output, HasSubstr("lo 127.0.0.1"));
}

TEST(Doctor, KnowsUcxAndWhatItReallyUses) {
  if (!TUTTI_HAS_UCX) GTEST_SKIP() << "backend ucx is not built here";
  const auto said = doctor({"--backend", "ucx"});
  ASSERT_EQ(said.code, 0) << said.output << said.errors;
  EXPECT_THAT(said.output, HasSubstr("\nucx 1."));
  EXPECT_THAT(said.output, testing::ContainsRegex("transport   (sysv|posix)"));
  EXPECT_THAT(said.output, HasSubstr("us for 4 bytes"));
  const auto tcp = doctor({"--backend", "ucx", "--no-measure"}, {"UCX_TLS=tcp"});
  EXPECT_THAT(tcp.output, HasSubstr("transport   tcp\n"));
  const auto nowhere = doctor({"--backend", "ucx", "--no-measure"}, {"TUTTI_INTERFACE=eth99"});
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_THAT(nowhere.output, HasSubstr("TUTTI_INTERFACE=eth99 names no interface"));
  EXPECT_THAT(nowhere.output, HasSubstr("lo 127.0.0.1"));
}

// If the driver cannot be used, one line gives advice.
TEST(Doctor, KnowsADriverThatIsTooOldSeesNothingOrDoesNotStart) {
  if (std::string(TUTTI_OTHER_DRIVER).empty()) GTEST_SKIP() << "device cuda is not built here";
  const auto failure = [](const char* version, const char* starts) {
    const auto said =
        doctor({"--json", "--no-measure"}, {std::string("LD_LIBRARY_PATH=") + TUTTI_OTHER_DRIVER,
                                            std::string("OTHER_DRIVER_VERSION=") + version,
                                            std::string("OTHER_DRIVER_STARTS=") + starts});
    EXPECT_EQ(said.code, 0) << said.errors;
    const auto cuda = json::parse(said.output)["cuda"];
    EXPECT_FALSE(cuda["available"]);
    EXPECT_TRUE(cuda["devices"].empty());
    return cuda["failure"].get<std::string>();
  };
  EXPECT_THAT(
      failure("11080", "0"),
      testing::AllOf(HasSubstr("no GPU: the driver serves CUDA 11.8, this plugin was built"),
                     HasSubstr("build Tutti with an older CUDA")));
  EXPECT_THAT(failure("99000", "100"),
              HasSubstr("no GPU: the driver is here but sees none; see nvidia-smi"));
  EXPECT_EQ(failure("0", "0"),
            "no GPU: there is no NVIDIA driver (libcuda.so.1); install one, or pass the GPU into "
            "this container, or keep tensors in host memory");
  EXPECT_EQ(failure("99000", "802"),
            "no GPU: system not yet initialized (cudaErrorSystemNotReady); see nvidia-smi");
}

TEST(Doctor, BadInputIsOneLine) {
  const auto wrong = doctor({"--backend", "smh"});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.errors, HasSubstr("tutti-doctor: there is no backend \"smh\", did you mean"));
  EXPECT_EQ(doctor({"--backend", "other_abi"}, {kPath}).code, 1);
  const auto option = doctor({"--jsno"});
  EXPECT_EQ(option.code, 2);
  EXPECT_THAT(option.errors, HasSubstr("see tutti-doctor --help"));
  const auto version = doctor({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.output, fmt::format("tutti-doctor {}\n", kVersion));
  const auto setting = doctor({}, {"TUTTI_BACKEND_PATH=plugins"});
  EXPECT_EQ(setting.code, 2);
  EXPECT_THAT(setting.errors, HasSubstr("TUTTI_BACKEND_PATH=plugins is not a list of folders"));
}

}  // namespace
}  // namespace tutti::test
