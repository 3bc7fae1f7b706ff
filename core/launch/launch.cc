#include "tutti/core/launch/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <span>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/core/launch/slurm_list.h"

namespace tutti {

namespace {

constexpr int kHighestRank = 1 << 20;

Error not_usable(const std::string& message) { return {ErrorCode::invalid_argument, message}; }

// Reads the variables of one launcher.
class Family {
 public:
  Family(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  bool has(const std::string& variable) const { return environment_.contains(variable); }

  bool has_any(std::span<const char* const> variables) const {
    return std::any_of(variables.begin(), variables.end(),
                       [&](const char* variable) { return has(variable); });
  }

  // Throws unless all of the variables are set. The error names a variable that is set, if any, and
  // one that is missing.
  void need_all(std::span<const char* const> variables, std::string_view advice = "") const {
    const auto present =
        std::find_if(variables.begin(), variables.end(), [&](auto* name) { return has(name); });
    if (present == variables.end()) text(variables.front());  // throws: the variable is missing
    for (const char* variable : variables)
      if (!has(variable))
        throw not_usable(fmt::format("{} of {} is set, but {} is missing; set all of {}, or none{}",
                                     *present, launcher_, variable, fmt::join(variables, " "),
                                     advice));
  }

  const std::string& text(const std::string& variable) const {
    const auto found = environment_.find(variable);
    if (found == environment_.end())
      throw not_usable(
          fmt::format("{} started this process, but {} is missing", launcher_, variable));
    return found->second;
  }

  int number(const std::string& variable, int low, int high) const {
    const auto& word = text(variable);
    const auto value = parse_integer(word, low, high);
    if (!value)
      throw not_usable(fmt::format("{}={} (set by {}) is not a number from {} to {}", variable,
                                   word, launcher_, low, high));
    return static_cast<int>(*value);
  }

  // Reads rank and size, and checks that they fit each other.
  void place(LauncherInfo& launch, const std::string& rank, const std::string& size) const {
    place_in(launch.rank, launch.size, rank, size);
    launch.launcher = launcher_;
    launch.sources["TUTTI_RANK"] = rank;
    launch.sources["TUTTI_SIZE"] = size;
  }

  void place_locally(LauncherInfo& launch, const std::string& rank, const std::string& size) const {
    place_in(launch.local_rank, launch.local_size, rank, size);
    if (launch.local_size > launch.size)
      throw not_usable(fmt::format("{}={} ranks on one host are more than the {} ranks of the job",
                                   size, launch.local_size, launch.size));
    launch.sources["TUTTI_LOCAL_RANK"] = rank;
    launch.sources["TUTTI_LOCAL_SIZE"] = size;
  }

 private:
  void place_in(int& rank, int& size, const std::string& rank_name,
                const std::string& size_name) const {
    size = number(size_name, 1, kHighestRank);
    rank = number(rank_name, 0, kHighestRank);
    if (rank >= size)
      throw not_usable(fmt::format("{}={} is not a rank of {}={} (must be from 0 to {})", rank_name,
                                   rank, size_name, size, size - 1));
  }

  const Environment& environment_;
  const std::string launcher_;
};

bool detect_tutti(const Environment& environment, LauncherInfo& launch) {
  const Family family(environment, "tutti-run");
  constexpr const char* kPlace[] = {"TUTTI_RANK", "TUTTI_SIZE"};
  constexpr const char* kLocal[] = {"TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE"};
  if (!family.has_any(kPlace) && !family.has_any(kLocal)) return false;
  family.need_all(kPlace);
  family.place(launch, "TUTTI_RANK", "TUTTI_SIZE");
  if (family.has_any(kLocal)) {
    family.need_all(kLocal);
    family.place_locally(launch, "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE");
  }
  launch.sources.clear();  // the settings table itself reads these variables
  if (launch.size > 1 && !family.has("TUTTI_STORE"))
    throw not_usable(
        fmt::format("TUTTI_SIZE={} ranks must meet somewhere, but TUTTI_STORE is missing (expected "
                    "tcp://host:port or file:///folder); tutti-run sets it",
                    launch.size));
  return true;
}

bool detect_torchrun(const Environment& environment, LauncherInfo& launch) {
  const Family family(environment, "torchrun");
  constexpr const char* kNames[] = {"RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                    "MASTER_ADDR", "MASTER_PORT"};
  if (!family.has_any(std::span(kNames).first(4))) return false;
  family.need_all(kNames, family.has("LOCAL_RANK")
                              ? ""
                              : " (where RANK counts pods, start tutti-run or torchrun in each)");
  family.place(launch, "RANK", "WORLD_SIZE");
  family.place_locally(launch, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  launch.meeting = Meeting::address;
  launch.host = family.text("MASTER_ADDR");
  if (launch.host.empty()) throw not_usable("MASTER_ADDR= (set by torchrun) is not a host");
  // MASTER_PORT is used by torchrun's own store.
  launch.port = family.number("MASTER_PORT", 1, 65534) + 1;
  const auto optional = [&](const char* name) { return family.has(name) ? family.text(name) : ""; };
  launch.public_secret =
      fmt::format("torchrun {} {} {}:{}", optional("TORCHELASTIC_RUN_ID"),
                  optional("TORCHELASTIC_RESTART_COUNT"), launch.host, launch.port);
  return true;
}

bool detect_open_mpi(const Environment& environment, LauncherInfo& launch) {
  const Family family(environment, "Open MPI");
  constexpr const char* kNames[] = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
  if (!family.has_any(kNames)) return false;
  family.need_all(kNames);
  family.place(launch, kNames[0], kNames[1]);
  family.place_locally(launch, kNames[2], kNames[3]);
  launch.meeting = Meeting::pmix;
  if (launch.size > 1 && !family.has("TUTTI_STORE")) {
    family.text("PMIX_RANK");
    family.text("PMIX_NAMESPACE");
  }
  return true;
}

bool detect_pmix(const Environment& environment, LauncherInfo& launch) {
  const Family family(environment, "PMIx");
  constexpr const char* kNames[] = {"PMIX_RANK", "PMIX_NAMESPACE"};
  if (!family.has_any(kNames)) return false;
  family.need_all(kNames);
  launch.launcher = "PMIx";
  launch.rank = family.number("PMIX_RANK", 0, kHighestRank);
  launch.size = launch.rank + 1;  // a lower bound until the server reports the size
  launch.sources["TUTTI_RANK"] = "PMIX_RANK";
  launch.meeting = Meeting::pmix;
  launch.sizes_from_pmix = true;
  return true;
}

// Reads the number of this step's tasks on this node from Slurm's list of all nodes.
void place_on_slurm_node(const Family& family, LauncherInfo& launch) {
  const auto& list = family.text("SLURM_STEP_TASKS_PER_NODE");
  const auto counts = expand_task_counts(list);
  if (!counts)
    throw not_usable(
        fmt::format("SLURM_STEP_TASKS_PER_NODE={} (set by Slurm) is not a list of task "
                    "counts like 4,1(x2)",
                    list));
  const int node = family.number("SLURM_NODEID", 0, static_cast<int>(counts->size()) - 1);
  launch.local_size = (*counts)[static_cast<size_t>(node)];
  if (launch.local_size < 1 || launch.local_size > launch.size)
    throw not_usable(
        fmt::format("SLURM_STEP_TASKS_PER_NODE={} (set by Slurm) gives node {} {} of {} "
                    "tasks",
                    list, node, launch.local_size, launch.size));
  launch.local_rank = family.number("SLURM_LOCALID", 0, launch.local_size - 1);
  launch.sources["TUTTI_LOCAL_RANK"] = "SLURM_LOCALID";
  launch.sources["TUTTI_LOCAL_SIZE"] = "SLURM_STEP_TASKS_PER_NODE";
}

bool detect_pmi(const Environment& environment, LauncherInfo& launch) {
  const Family family(environment, "PMI");
  constexpr const char* kNames[] = {"PMI_RANK", "PMI_SIZE"};
  constexpr const char* kLocal[] = {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
  if (!family.has_any(kNames)) return false;
  family.need_all(kNames);
  family.place(launch, kNames[0], kNames[1]);
  // The protocol does not provide local ranks; each launcher has its own variables for them.
  if (family.has_any(kLocal)) {
    family.need_all(kLocal);
    family.place_locally(launch, kLocal[0], kLocal[1]);
  } else if (family.has("SLURM_STEP_ID")) {
    place_on_slurm_node(Family(environment, "Slurm"), launch);
  }
  launch.meeting = Meeting::pmi;
  if (launch.size > 1 && !family.has("TUTTI_STORE"))
    launch.pmi_descriptor = family.number("PMI_FD", 0, std::numeric_limits<int>::max());
  return true;
}

// Chooses how the ranks of a Slurm step without PMI meet, because Slurm offers no channel between
// them. If TUTTI_SECRET is in the job's environment, all ranks compute the same address. Otherwise
// rank 0 leaves the address and a secret in a file.
void meet_in_slurm(const Family& family, LauncherInfo& launch) {
  const auto optional = [&](const char* name) {
    return family.has(name) ? family.text(name) : "0";
  };
  const auto job = fmt::format("{}.{}.{}", family.text("SLURM_JOB_ID"),
                               family.text("SLURM_STEP_ID"), optional("SLURM_RESTART_COUNT"));
  if (!family.has("TUTTI_SECRET") && !family.has("TUTTI_SECRET_FD")) {
    launch.meeting = Meeting::file;
    // A restarted controller reuses job ids. The port of srun distinguishes such jobs.
    launch.file = fmt::format("slurm-{}-{}", job, optional("SLURM_SRUN_COMM_PORT"));
    if (launch.file.find('/') != launch.file.npos)
      throw not_usable(
          fmt::format("SLURM_JOB_ID and SLURM_STEP_ID (set by Slurm) are not numbers: {}", job));
    return;
  }
  const auto& list = family.text("SLURM_STEP_NODELIST");
  const auto hosts = read_host_list(list);
  if (!hosts)
    throw not_usable(fmt::format(
        "SLURM_STEP_NODELIST={} (set by Slurm) is not a list of hosts like n[1-3,07]", list));
  launch.meeting = Meeting::address;
  launch.host = launch.local_size == launch.size ? "127.0.0.1" : hosts->first;
  // This range is below the range from which Linux assigns ports automatically.
  launch.port = 20'000 + static_cast<int>(hash_text(job) % 12'000);
}

bool detect_slurm(const Environment& environment, LauncherInfo& launch) {
  const Family family(environment, "Slurm");
  // The shell of a batch script has the variables of rank 0, but belongs to no step.
  if (!family.has("SLURM_STEP_ID")) return false;
  family.place(launch, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
  place_on_slurm_node(family, launch);
  if (launch.size > 1) meet_in_slurm(family, launch);
  return true;
}

}  // namespace

LauncherInfo detect_launcher(const Environment& environment) {
  LauncherInfo launch;
  const bool found = detect_tutti(environment, launch) || detect_torchrun(environment, launch) ||
                     detect_open_mpi(environment, launch) || detect_pmix(environment, launch) ||
                     detect_pmi(environment, launch) || detect_slurm(environment, launch);
  if (environment.contains("TUTTI_STORE")) {
    if (!found)
      throw not_usable(
          "TUTTI_STORE is set, but nothing says which rank this is: TUTTI_RANK and "
          "TUTTI_SIZE are missing");
    launch.meeting = Meeting::given;
  }
  if (launch.size == 1 && !launch.sizes_from_pmix && launch.meeting != Meeting::given)
    launch.meeting = Meeting::none;
  return launch;
}

}  // namespace tutti
