// tutti-bench measures the library's operations and checks their results.

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "tools/bench/cases/cases.h"
#include "tools/bench/cases/create_case.h"
#include "tools/bench/command_line.h"
#include "tools/run/child.h"
#include "tools/run/command_line.h"
#include "tools/run/front.h"
#include "tools/run/job.h"
#include "tutti/base/error.h"
#include "tutti/base/process/cores.h"
#include "tutti/base/temporary_file.h"
#include "tutti/core/launch/launch.h"

namespace tutti::bench {
namespace {

// Runs before the communicator is made, so that the communicator's threads inherit the core.
void pin_to_core(int local_rank) {
  const auto cores = usable_cores();
  if (cores.empty()) throw system_error("--pin: cannot ask for this process's cores", errno);
  const int core = cores[static_cast<size_t>(local_rank) % cores.size()];
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(static_cast<size_t>(core), &own);
  if (::sched_setaffinity(0, sizeof own, &own) != 0)
    throw system_error(fmt::format("--pin: cannot bind rank to core {}", core), errno);
}

int run_rank(const Settings& settings) {
  const auto started = Clock::now();
  auto options = Options::from_environment();
  if (settings.ranks > 0 && settings.ranks != options.size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--ranks {}, but {} says that there are {}; leave --ranks to one of "
                            "them",
                            settings.ranks, options.launcher, options.size));
  if (!settings.backend.empty()) options.backend = settings.backend;
  if (settings.pin) pin_to_core(options.local_rank);
  const bool silent = options.rank != 0;
  auto communicator = Communicator::create(std::move(options));
  Report report(settings, silent);
  Session session(settings, std::move(communicator), report, started);
  const bool right = find_case(settings.case_name).run(session);
  // Every rank knows whether the values are right, but only rank 0's exit code reports wrong
  // values.
  return right || silent ? 0 : 1;
}

run::Request own_job(const std::vector<std::string>& arguments, int ranks) {
  run::Request request;
  request.ranks = ranks;
  request.bare_first_rank = true;
  request.program = {std::filesystem::read_symlink("/proc/self/exe").string()};
  request.program.insert(request.program.end(), arguments.begin(), arguments.end());
  return request;
}

// A file to which the jobs append their samples. The destructor removes it.
class SampleFile {
 public:
  SampleFile() {
    const auto before = (std::filesystem::temp_directory_path() / "tutti-bench-").string();
    auto made = make_temporary_file(AT_FDCWD, before, "", 0600);
    if (!made.file) throw system_error("cannot make a file for samples", made.error);
    path_ = std::move(made.name);
  }
  ~SampleFile() { ::unlink(path_.c_str()); }
  SampleFile(const SampleFile&) = delete;
  SampleFile& operator=(const SampleFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Takes each sample in fresh processes.
int run_create_jobs(const std::vector<std::string>& arguments, const Settings& settings, int ranks,
                    const run::Keeper& keeper) {
  const SampleFile sample_file;
  auto words = arguments;
  words.insert(words.end(), {"--sample-file", sample_file.path()});
  int code = 0;
  for (int i = 0; i < settings.repetitions && code == 0; ++i)
    code = run::Job(own_job(words, ranks), keeper).run();

  Record record;
  std::vector<double> samples;
  std::ifstream lines(sample_file.path());
  for (std::string line; std::getline(lines, line);) add_sample(line, record, samples);
  if (code != 0 || samples.empty()) return code != 0 ? code : 1;
  record.case_name = settings.case_name;
  record.way = to_string(Way::blocking);
  record.extra["pinned"] = settings.pin;
  Report report(settings, false);
  report_create(report, record, samples);
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  const auto settings = parse_command_line(arguments);
  const auto variables = run::own_variables();
  const bool launched = detect_launcher(variables).launcher != "none";
  const int ranks = settings.ranks > 0 ? settings.ranks : 2;
  if (launched || ranks == 1) return run_rank(settings);
  Report::check_files(settings);
  const auto keeper = run::Keeper::divide();
  if (settings.case_name == "create") return run_create_jobs(arguments, settings, ranks, keeper);
  return run::Job(own_job(arguments, ranks), keeper).run();
}

}  // namespace
}  // namespace tutti::bench

int main(int count, char** words) {
  return tutti::run::run_tool("tutti-bench", [=] {
    return tutti::bench::run({words + 1, words + count});
  });
}
