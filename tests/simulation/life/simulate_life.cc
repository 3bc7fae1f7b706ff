// Runs simulated jobs of drawn cases, in which ranks meet, split, die, shrink and start again.
// Reports their broken promises.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <iostream>
#include <new>
#include <optional>

#include "tests/simulation/life/life_case.h"
#include "tests/simulation/life/life_judge.h"
#include "tests/simulation/life/life_world.h"

namespace tutti::simulation {
namespace {

struct Arguments {
  uint64_t seeds = 10000, first = 1;
  int jobs = 1;
  double minutes = 0;
  std::optional<uint64_t> printed, traced;
  bool lists = false;
};

// What a process that runs seeds reports to its parent.
struct Shared {
  std::atomic<uint64_t> seed{0};  // the current seed
  std::atomic<bool> found{false};
  uint64_t cases = 0, calls = 0, ended_well = 0, deaths = 0;
  LifeLooks looks{};
};

std::string to_text(const std::vector<LifeFinding>& findings) {
  std::string text;
  for (const auto& finding : findings)
    text += finding.promise == 0 ? fmt::format("  the world: {}\n", finding.text)
                                 : fmt::format("  L{}: {}\n", finding.promise, finding.text);
  return text;
}

// Runs every jobs-th seed in its own process, so that the parent knows the seed of a crash.
void run_seeds(const Arguments& arguments, int job, Shared* all) {
  const auto began = std::chrono::steady_clock::now();
  Shared& mine = all[job];
  for (auto i = static_cast<uint64_t>(job); i < arguments.seeds;
       i += static_cast<uint64_t>(arguments.jobs)) {
    const double passed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (arguments.minutes > 0 && passed >= 60 * arguments.minutes) return;
    for (int other = 0; other < arguments.jobs; ++other)
      if (all[other].found && !arguments.lists) return;
    const uint64_t seed = arguments.first + i;
    mine.seed = seed;
    const LifeCase drawn = draw_life(seed);
    const LifeRecord record = World(drawn).run();
    ++mine.cases;
    for (const auto& call : record.calls) ++(call.well ? mine.ended_well : mine.calls);
    for (const auto& process : record.processes) mine.deaths += process.died != kNever;
    const auto findings = check_life(drawn, record, &mine.looks);
    if (findings.empty()) continue;
    mine.found = true;
    std::cout << (arguments.lists
                      ? fmt::format("seed {}{}", seed, to_text({findings.front()}))
                      : fmt::format(
                            "seed {} found:\n{}its case is\n{}replay: simulate_life --trace "
                            "{}\n",
                            seed, to_text(findings), to_text(drawn), seed))
              << std::flush;
  }
}

int run_all_seeds(const Arguments& arguments) {
  const auto began = std::chrono::steady_clock::now();
  const auto jobs = static_cast<size_t>(arguments.jobs);
  void* memory = mmap(nullptr, jobs * sizeof(Shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* all = static_cast<Shared*>(memory);
  std::vector<pid_t> children;
  for (size_t job = 0; job < jobs; ++job) {
    new (all + job) Shared;
    std::cout << std::flush;
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("cannot fork");
    if (child == 0) {
      run_seeds(arguments, static_cast<int>(job), all);
      std::cout << std::flush;
      _exit(0);
    }
    children.push_back(child);
  }
  bool failed = false;
  Shared sum;
  for (size_t job = 0; job < jobs; ++job) {
    int status = 0;
    waitpid(children[job], &status, 0);
    const Shared& one = all[job];
    failed |= one.found;
    sum.cases += one.cases;
    sum.calls += one.calls;
    sum.ended_well += one.ended_well;
    sum.deaths += one.deaths;
    for (size_t i = 0; i < sum.looks.size(); ++i) sum.looks[i] += one.looks[i];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    failed = true;
    std::cout << fmt::format("seed {} ended its process (status {:#x}); its case is\n{}",
                             one.seed.load(), status, to_text(draw_life(one.seed)));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::cout << fmt::format(
      "{} seeds from {} on in {:.1f} s: {:.0f} a minute\ncalls: {} ended well, {} did not; {} "
      "deaths\nlooks:",
      sum.cases, arguments.first, seconds, static_cast<double>(sum.cases) / seconds * 60,
      sum.ended_well, sum.calls, sum.deaths);
  for (size_t i = 1; i < sum.looks.size(); ++i)
    std::cout << fmt::format(" L{} {}", i, sum.looks[i]);
  std::cout << "\n";
  munmap(memory, jobs * sizeof(Shared));
  return failed ? 1 : 0;
}

int run_one(uint64_t seed) {
  const LifeCase drawn = draw_life(seed);
  std::cout << to_text(drawn);
  World world(drawn, true);
  const LifeRecord record = world.run();
  std::cout << world.trace();
  const auto findings = check_life(drawn, record);
  std::cout << (findings.empty() ? "nothing found\n" : "found:\n" + to_text(findings));
  return findings.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tutti::simulation

int main(int argc, char** argv) {
  using namespace tutti::simulation;
  Arguments arguments;
  CLI::App app{"Simulates jobs whose ranks meet, die and go on, and looks for broken promises."};
  app.add_option("--seeds", arguments.seeds, "How many drawn cases");
  app.add_option("--from", arguments.first, "The first seed");
  app.add_option("--jobs", arguments.jobs, "Processes at once")->check(CLI::Range(1, 256));
  app.add_option("--minutes", arguments.minutes, "Ends after so long; 0: after all seeds");
  app.add_flag("--list", arguments.lists, "Goes on after a finding, with a line a seed");
  app.add_option("--print", arguments.printed, "Prints the case of this seed alone");
  app.add_option("--trace", arguments.traced, "Runs this seed and prints what each rank does");
  CLI11_PARSE(app, argc, argv);
  try {
    if (arguments.printed) {
      std::cout << to_text(draw_life(*arguments.printed));
      return 0;
    }
    return arguments.traced ? run_one(*arguments.traced) : run_all_seeds(arguments);
  } catch (const std::exception& error) {
    std::cerr << "simulate_life: " << error.what() << "\n";
    return 2;
  }
}
