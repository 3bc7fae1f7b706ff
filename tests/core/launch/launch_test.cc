// Environments that each launcher creates, taken from real runs.

#include "tutti/core/launch/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const Environment kTuttiRun = {{"TUTTI_RANK", "3"},
                               {"TUTTI_SIZE", "4"},
                               {"TUTTI_LOCAL_RANK", "1"},
                               {"TUTTI_LOCAL_SIZE", "2"},
                               {"TUTTI_STORE", "tcp://127.0.0.1:4711"}};
const Environment kTorchrun = {{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"GROUP_RANK", "1"},
                               {"MASTER_ADDR", "host-0"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "run7"},
                               {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Environment kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"PMIX_RANK", "3"},
    {"PMIX_NAMESPACE", "1187577857"}};
const Environment kPmix = {{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "slurm.pmix.7.0"}};
const Environment kHydra = {{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},
                            {"PMI_FD", "6"},          {"MPI_LOCALRANKID", "1"},
                            {"MPI_LOCALNRANKS", "2"}, {"HYDI_CONTROL_FD", "7"}};
const Environment kSlurm = {{"SLURM_PROCID", "3"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "1"},
                            {"SLURM_NTASKS", "4"},
                            {"SLURM_JOB_ID", "7"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "4"},
                            {"SLURM_STEP_NODELIST", "n[1-2]"},
                            {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                            {"SLURM_SRUN_COMM_PORT", "40001"}};
const Environment kSlurmPmi2 = [] {
  auto environment = kSlurm;
  environment.insert({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_FD", "5"}, {"PMI_JOBID", "7.0"}});
  return environment;
}();

std::string launch_refusal(const Environment& environment) {
  return test::refusal([&] { detect_launcher(environment); });
}

Environment without(Environment environment, const std::string& variable) {
  EXPECT_EQ(environment.erase(variable), 1u) << variable;
  return environment;
}

Environment with(Environment environment, const std::string& variable, const std::string& value) {
  environment[variable] = value;
  return environment;
}

Environment both(Environment inner, const Environment& outer) {
  inner.insert(outer.begin(), outer.end());
  return inner;
}

struct Case {
  const char* launcher;
  Environment environment;
  Meeting meeting;
};

// The innermost launcher comes first: this is the order of precedence.
std::vector<Case> all_launchers() {
  return {{"tutti-run", kTuttiRun, Meeting::given},
          {"torchrun", kTorchrun, Meeting::address},
          {"Open MPI", kOpenMpi, Meeting::pmix},
          {"PMIx", kPmix, Meeting::pmix},
          {"PMI", kHydra, Meeting::pmi},
          {"Slurm", kSlurm, Meeting::file}};
}

TEST(DetectLauncher, FindsEach) {
  for (const auto& [launcher, environment, meeting] : all_launchers()) {
    SCOPED_TRACE(launcher);
    const auto found = detect_launcher(environment);
    EXPECT_EQ(found.launcher, launcher);
    EXPECT_EQ(found.rank, 3);
    EXPECT_EQ(found.size, 4);
    EXPECT_EQ(found.meeting, meeting);
    if (found.sizes_from_pmix) continue;
    EXPECT_EQ(found.local_rank, 1);
    EXPECT_EQ(found.local_size, 2);
  }
}

TEST(DetectLauncher, AloneIsOneRank) {
  const auto found = detect_launcher({{"HOME", "/root"}});
  EXPECT_EQ(found.launcher, "none");
  EXPECT_EQ(found.rank, 0);
  EXPECT_EQ(found.size, 1);
  EXPECT_EQ(found.meeting, Meeting::none);
}

TEST(DetectLauncher, InnerLaunchersWin) {
  const auto launchers = all_launchers();
  for (size_t inner = 0; inner < launchers.size(); ++inner)
    for (size_t outer = inner + 1; outer < launchers.size(); ++outer) {
      const auto found =
          detect_launcher(both(launchers[inner].environment, launchers[outer].environment));
      EXPECT_EQ(found.launcher, launchers[inner].launcher) << launchers[outer].launcher;
    }
}

TEST(DetectLauncher, NamesTheMissingVariable) {
  const std::vector<std::pair<Environment, std::vector<const char*>>> families = {
      {kTuttiRun,
       {"TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE", "TUTTI_STORE"}},
      {kTorchrun,
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}},
      {kOpenMpi,
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_RANK", "PMIX_NAMESPACE"}},
      {kPmix, {"PMIX_RANK", "PMIX_NAMESPACE"}},
      {kHydra, {"PMI_RANK", "PMI_SIZE", "PMI_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}},
      {kSlurm,
       {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID",
        "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID"}},
      {with(kSlurm, "TUTTI_SECRET", "s"), {"SLURM_STEP_NODELIST"}}};
  for (const auto& [environment, variables] : families)
    for (const char* variable : variables)
      EXPECT_THAT(launch_refusal(without(environment, variable)),
                  HasSubstr(std::string(variable) + " is missing"));
}

TEST(DetectLauncher, SaysTheWholeLine) {
  EXPECT_EQ(launch_refusal(without(kTorchrun, "WORLD_SIZE")),
            "RANK of torchrun is set, but WORLD_SIZE is missing; set all of RANK WORLD_SIZE "
            "LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT, or none");
  EXPECT_EQ(launch_refusal(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "4")),
            "OMPI_COMM_WORLD_RANK=4 is not a rank of OMPI_COMM_WORLD_SIZE=4 (must be from 0 to 3)");
  EXPECT_EQ(launch_refusal({{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "2"}}),
            "TUTTI_SIZE=2 ranks must meet somewhere, but TUTTI_STORE is missing (expected "
            "tcp://host:port or file:///folder); tutti-run sets it");
  // Another variable of tutti-run is set, but TUTTI_RANK is not.
  for (const char* other : {"TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE"})
    EXPECT_EQ(launch_refusal({{other, "1"}}),
              "tutti-run started this process, but TUTTI_RANK is missing");
}

TEST(DetectLauncher, CountsNoPods) {
  EXPECT_THAT(
      launch_refusal(
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "job-0"}, {"MASTER_PORT", "23456"}}),
      AllOf(HasSubstr("LOCAL_RANK is missing"), HasSubstr("counts pods")));
}

TEST(DetectLauncher, WantsWholeNumbers) {
  const std::vector<std::pair<const Environment*, const char*>> numbers = {
      {&kTuttiRun, "TUTTI_RANK"},
      {&kTuttiRun, "TUTTI_LOCAL_SIZE"},
      {&kTorchrun, "WORLD_SIZE"},
      {&kTorchrun, "MASTER_PORT"},
      {&kOpenMpi, "OMPI_COMM_WORLD_LOCAL_RANK"},
      {&kPmix, "PMIX_RANK"},
      {&kHydra, "PMI_FD"},
      {&kSlurm, "SLURM_PROCID"},
      {&kSlurm, "SLURM_NODEID"}};
  for (const auto& [environment, variable] : numbers)
    for (const char* garbage : {"", "x", "1x", " 1", "0x1", "-1", "1.0", "99999999999999999999"})
      EXPECT_THAT(launch_refusal(with(*environment, variable, garbage)),
                  AllOf(HasSubstr(std::string(variable) + "=" + garbage + " "),
                        HasSubstr(") is not a number from ")));
}

TEST(DetectLauncher, LocalRanksFit) {
  EXPECT_THAT(launch_refusal(with(kTorchrun, "LOCAL_WORLD_SIZE", "5")),
              HasSubstr("=5 ranks on one host are more than the 4 ranks of the job"));
  EXPECT_THAT(launch_refusal(with(kHydra, "MPI_LOCALRANKID", "2")),
              HasSubstr("MPI_LOCALRANKID=2 is not a rank of MPI_LOCALNRANKS=2"));
  EXPECT_THAT(launch_refusal(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "2(x")),
              HasSubstr("is not a list of task counts"));
  EXPECT_THAT(launch_refusal(with(kSlurm, "SLURM_NODEID", "2")), HasSubstr("SLURM_NODEID=2"));
}

TEST(DetectLauncher, NeverUsesTorchrunsOwnPort) {
  const auto found = detect_launcher(kTorchrun);
  EXPECT_EQ(found.host, "host-0");
  EXPECT_EQ(found.port, 29501);
  EXPECT_NE(detect_launcher(with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "1")).public_secret,
            found.public_secret);
  EXPECT_THAT(launch_refusal(with(kTorchrun, "MASTER_PORT", "65535")),
              HasSubstr("MASTER_PORT=65535"));
  EXPECT_THAT(launch_refusal(with(kTorchrun, "MASTER_ADDR", "")),
              HasSubstr("MASTER_ADDR= (set by torchrun) is not a host"));
}

TEST(DetectLauncher, SlurmsPmiKnowsTheNode) {
  const auto found = detect_launcher(kSlurmPmi2);
  EXPECT_EQ(found.launcher, "PMI");
  EXPECT_EQ(found.meeting, Meeting::pmi);
  EXPECT_EQ(found.pmi_descriptor, 5);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 2);
}

TEST(DetectLauncher, ABatchScriptIsAlone) {
  EXPECT_EQ(detect_launcher(without(kSlurm, "SLURM_STEP_ID")).size, 1);
}

TEST(DetectLauncher, SlurmWithASecretWorksOutTheAddress) {
  const auto secret = with(kSlurm, "TUTTI_SECRET", "s");
  const auto found = detect_launcher(secret);
  EXPECT_EQ(found.meeting, Meeting::address);
  EXPECT_EQ(found.host, "n1");
  EXPECT_GE(found.port, 20000);
  EXPECT_LT(found.port, 32000);
  EXPECT_EQ(detect_launcher(with(secret, "SLURM_PROCID", "0")).port, found.port);
  EXPECT_NE(detect_launcher(with(secret, "SLURM_STEP_ID", "1")).port, found.port);
  EXPECT_THAT(launch_refusal(with(secret, "SLURM_STEP_NODELIST", "n[1")),
              HasSubstr("not a list of hosts"));

  auto one_node = with(secret, "SLURM_STEP_TASKS_PER_NODE", "4");
  one_node["SLURM_NODEID"] = "0";
  EXPECT_EQ(detect_launcher(one_node).host, "127.0.0.1");
}

TEST(DetectLauncher, SlurmWithoutASecretLeavesAFile) {
  EXPECT_EQ(detect_launcher(kSlurm).file, "slurm-7.0.0-40001");
  EXPECT_EQ(detect_launcher(with(kSlurm, "SLURM_RESTART_COUNT", "2")).file, "slurm-7.0.2-40001");
  EXPECT_THAT(launch_refusal(with(kSlurm, "SLURM_JOB_ID", "../x")), HasSubstr("not numbers"));
}

TEST(DetectLauncher, AGivenStoreNeedsNoExchange) {
  for (const auto& launcher : all_launchers()) {
    auto environment = with(launcher.environment, "TUTTI_STORE", "file:///tmp/x");
    EXPECT_EQ(detect_launcher(environment).meeting, Meeting::given) << launcher.launcher;
  }
  EXPECT_EQ(detect_launcher(with(without(kHydra, "PMI_FD"), "TUTTI_STORE", "tcp://h:1")).rank, 3);
  EXPECT_THAT(launch_refusal({{"TUTTI_STORE", "tcp://h:1"}}), HasSubstr("TUTTI_SIZE are missing"));
}

TEST(DetectLauncher, OneRankMeetsNobody) {
  EXPECT_EQ(detect_launcher({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).meeting, Meeting::none);
  EXPECT_EQ(detect_launcher({{"OMPI_COMM_WORLD_RANK", "0"},
                             {"OMPI_COMM_WORLD_SIZE", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})
                .meeting,
            Meeting::none);
}

}  // namespace
}  // namespace tutti
