// The launchers' environment variables, as lines of NAME=VALUE.

#include "tutti/core/launch/launch.h"

#include "tests/fuzz/harness.h"
#include "tutti/base/text.h"

namespace tutti::fuzz {
namespace {

bool parse_launch(std::string_view input) {
  Environment environment;
  for (const auto& line : split_text(input, '\n'))
    if (const auto equals = line.find('='); equals != line.npos)
      environment.insert_or_assign(line.substr(0, equals), line.substr(equals + 1));
  const auto launch = detect_launcher(environment);
  require(launch.rank >= 0 && launch.rank < launch.size, "a launcher gives a rank beyond its size");
  require(launch.local_rank >= 0 && launch.local_rank < launch.local_size,
          "a launcher gives a local rank beyond the local size");
  require(launch.meeting != Meeting::address || (launch.port > 0 && launch.port < 65536),
          "a launcher gives no port");
  require(launch.file.find('/') == std::string::npos, "a launcher names a file elsewhere");
  return launch.launcher != "none";
}

std::vector<std::string> seeds_of_launch() {
  const std::string slurm =
      "SLURM_PROCID=3\nSLURM_LOCALID=1\nSLURM_NODEID=1\nSLURM_JOB_ID=7\nSLURM_STEP_ID=0\n"
      "SLURM_STEP_NUM_TASKS=4\nSLURM_STEP_NODELIST=n[1-2]\nSLURM_STEP_TASKS_PER_NODE=2(x2)\n"
      "SLURM_SRUN_COMM_PORT=40001";
  // A short text for 65,536 long names. libFuzzer found that the parser made all of them.
  const auto many = "n[1-256]" + std::string(200, 'x') + "[1-256]";
  return {
      "TUTTI_RANK=3\nTUTTI_SIZE=4\nTUTTI_LOCAL_RANK=1\nTUTTI_LOCAL_SIZE=2\nTUTTI_STORE=tcp://h:1",
      "RANK=3\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=h\nMASTER_PORT=29500",
      "OMPI_COMM_WORLD_RANK=3\nOMPI_COMM_WORLD_SIZE=4\nOMPI_COMM_WORLD_LOCAL_RANK=1\n"
      "OMPI_COMM_WORLD_LOCAL_SIZE=2\nPMIX_RANK=3\nPMIX_NAMESPACE=1",
      "PMIX_RANK=3\nPMIX_NAMESPACE=slurm.pmix.7.0",
      "PMI_RANK=3\nPMI_SIZE=4\nPMI_FD=6\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2",
      slurm,
      slurm + "\nTUTTI_SECRET=a",
      slurm + "\nTUTTI_SECRET=a\nSLURM_STEP_NODELIST=" + many,
      slurm + "\nPMI_RANK=3\nPMI_SIZE=4\nPMI_FD=5",
  };
}

const Registered registered_launch(
    {.name = "launch", .parse = parse_launch, .seeds = seeds_of_launch, .most_bytes = 8u << 20});

}  // namespace
}  // namespace tutti::fuzz
