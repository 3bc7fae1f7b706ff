#pragma once

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/seconds_since.h"

namespace tutti::simulation {

/// Which seeds a program runs, and how.
struct SeedArguments {
  uint64_t seeds = 10000, first = 1;
  int jobs = 1;
  double minutes = 0;
  bool lists = false;

  void add_to(CLI::App& app) {
    app.add_option("--seeds", seeds, "How many drawn cases");
    app.add_option("--from", first, "The first seed");
    app.add_option("--jobs", jobs, "Processes at once")->check(CLI::Range(1, 256));
    app.add_option("--minutes", minutes, "Ends after so long; 0: after all seeds");
    app.add_flag("--list", lists, "Goes on after a finding: a line a seed, nothing is shrunk");
  }
};

/// Runs `run(seed, tally)`, which returns what it found or nothing, for all seeds, and prints their
/// sum. Every jobs-th seed is run in a process of its own, so that a crash tells its seed; then
/// `case_of(seed)` is printed. A Tally has plain numbers only, for processes share it: `cases`,
/// add() and to_text(). Returns the exit code.
template <class Tally, class Run, class CaseOf>
int run_all_seeds(const SeedArguments& arguments, const Run& run, const CaseOf& case_of) {
  // A process that runs seeds tells this to the one that waits for it.
  struct Shared {
    std::atomic<uint64_t> seed{0};  // under way
    std::atomic<bool> found{false};
    Tally tally;
  };
  const auto began = Clock::now();
  const auto jobs = static_cast<size_t>(arguments.jobs);
  void* memory = mmap(nullptr, jobs * sizeof(Shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* all = static_cast<Shared*>(memory);
  for (size_t job = 0; job < jobs; ++job) new (all + job) Shared;
  const auto run_share = [&](size_t job) {
    for (uint64_t i = job; i < arguments.seeds; i += jobs) {
      if (arguments.minutes > 0 && test::seconds_since(began) >= 60 * arguments.minutes) return;
      for (size_t other = 0; other < jobs; ++other)
        if (all[other].found && !arguments.lists) return;
      all[job].seed = arguments.first + i;
      const std::string finding = run(arguments.first + i, all[job].tally);
      if (finding.empty()) continue;
      all[job].found = true;
      std::cout << finding << std::flush;
    }
  };
  std::vector<pid_t> children;
  for (size_t job = 0; job < jobs; ++job) {
    std::cout << std::flush;
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("cannot fork");
    if (child == 0) {
      run_share(job);
      std::cout << std::flush;
      _exit(0);
    }
    children.push_back(child);
  }
  bool failed = false;
  Tally sum;
  for (size_t job = 0; job < jobs; ++job) {
    int status = 0;
    waitpid(children[job], &status, 0);
    failed |= all[job].found;
    sum.add(all[job].tally);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    failed = true;
    std::cout << fmt::format("seed {} ended its process (status {:#x}); its case is\n{}",
                             all[job].seed.load(), status, case_of(all[job].seed));
  }
  const double seconds = test::seconds_since(began);
  std::cout << fmt::format("{} seeds from {} on in {:.1f} s: {:.0f} a minute\n{}", sum.cases,
                           arguments.first, seconds, static_cast<double>(sum.cases) / seconds * 60,
                           sum.to_text());
  munmap(memory, jobs * sizeof(Shared));
  return failed ? 1 : 0;
}

}  // namespace tutti::simulation
