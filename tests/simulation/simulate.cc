// Runs simulated worlds of drawn cases, or of one case in a file, and reports their broken
// promises.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <new>
#include <optional>
#include <sstream>

#include "tests/simulation/coverage.h"
#include "tests/simulation/draw.h"
#include "tests/simulation/judge/invariants.h"
#include "tests/simulation/judge/shrink.h"
#include "tests/simulation/run.h"
#include "tests/simulation/text.h"

namespace tutti::simulation {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  uint64_t seeds = 10000, first = 1;
  int jobs = 1, scale = 1;
  double minutes = 0;  // 0: all seeds, however long that takes
  std::optional<uint64_t> printed;
  std::string file, cases = TUTTI_SOURCE_DIR "/tests/simulation/cases", commit;
  std::string tier = "operations";
  bool with_trace = false, without_faults = false, lists = false;

  DrawOptions draws() const {
    const auto at = std::ranges::find(kTierNames, tier);
    return {.without_faults = without_faults,
            .scale = scale,
            .tier = static_cast<Tier>(at - kTierNames.begin())};
  }
};

// What a process that runs seeds reports to its parent.
struct Shared {
  std::atomic<uint64_t> seed{0};  // the current seed
  std::atomic<bool> found{false};
  Coverage coverage;
};

Case read_case(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw std::invalid_argument("cannot read " + file);
  std::stringstream text;
  text << stream.rdbuf();
  return parse(text.str());
}

Findings findings_of(const Case& from, Coverage* coverage, bool twice) {
  try {
    const Outcome outcome = run(from);
    if (coverage != nullptr) coverage->add(from, outcome.record);
    Looks looks{};
    Findings findings = check(from, outcome.record, &looks);
    if (twice) ++looks[17];
    if (coverage != nullptr)
      for (size_t i = 0; i < looks.size(); ++i) coverage->looks[i] += looks[i];
    if (twice && run(from).hash != outcome.hash)
      findings.push_back({17, "the same case went otherwise when it ran again"});
    return findings;
  } catch (const std::exception& error) {
    return {{0, fmt::format("the world threw: {}", error.what())}};
  }
}

std::string to_text(const Findings& findings) {
  std::string text;
  for (const auto& finding : findings)
    text += finding.invariant == 0 ? fmt::format("  {}\n", finding.text)
                                   : fmt::format("  I{}: {}\n", finding.invariant, finding.text);
  return text;
}

// Returns a finding's text without its numbers and its operation, so that shrinking does not wander
// from one mistake to another.
std::string essence_of(const Finding& finding) {
  std::string text = finding.text.substr(std::min(finding.text.find(')'), finding.text.size()));
  if (text.empty()) text = finding.text;
  std::erase_if(text, [](char letter) { return letter >= '0' && letter <= '9'; });
  return fmt::format("{}{}", finding.invariant, text.substr(0, 40));
}

// Returns the smallest case that breaks the same invariant as `from`, and how to run it again.
std::string report(const Arguments& arguments, uint64_t seed, const Case& from,
                   const Findings& findings) {
  const int first = findings.front().invariant;
  const std::string essence = essence_of(findings.front());
  const auto fails = [&](const Case& smaller) {
    const Findings now = findings_of(smaller, nullptr, first == 17);
    return std::any_of(now.begin(), now.end(),
                       [&](const Finding& finding) { return essence_of(finding) == essence; });
  };
  const Shrunk shrunk = shrink(from, fails);
  const fs::path file = fs::temp_directory_path() / fmt::format("simulate-{}.case", seed);
  std::ofstream(file) << "# seed " << seed << "\n" << simulation::to_text(shrunk.smallest);
  const Findings at_last = findings_of(shrunk.smallest, nullptr, first == 17);
  return fmt::format(
      "seed {}{} found:\n{}after {} runs the smallest case is\n{}of which is found:\n{}"
      "replay: build/release/tests/simulation/simulate --case {} --trace\n",
      seed, arguments.commit.empty() ? "" : " at commit " + arguments.commit, to_text(findings),
      shrunk.runs, simulation::to_text(shrunk.smallest), to_text(at_last), file.string());
}

// Runs every jobs-th seed in its own process, so that the parent knows the seed of a crash.
void run_seeds(const Arguments& arguments, int job, Shared* all) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(arguments.minutes * 60));
  Shared& mine = all[job];
  for (auto i = static_cast<uint64_t>(job); i < arguments.seeds;
       i += static_cast<uint64_t>(arguments.jobs)) {
    if (arguments.minutes > 0 && Clock::now() >= end) return;
    for (int other = 0; other < arguments.jobs; ++other)
      if (all[other].found && !arguments.lists) return;
    const uint64_t seed = arguments.first + i;
    mine.seed = seed;
    const Case drawn = draw(seed, arguments.draws());
    const Findings findings = findings_of(drawn, &mine.coverage, seed % 64 == 0);
    if (findings.empty()) continue;
    mine.found = true;
    if (arguments.lists) {
      std::cout << fmt::format("seed {}{}", seed, to_text({findings.front()})) << std::flush;
      continue;
    }
    std::cout << report(arguments, seed, drawn, findings) << std::flush;
    return;
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
  Coverage coverage;
  for (size_t job = 0; job < jobs; ++job) {
    int status = 0;
    waitpid(children[job], &status, 0);
    failed |= all[job].found;
    coverage.add(all[job].coverage);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    failed = true;
    const Case crashed = draw(all[job].seed, arguments.draws());
    std::cout << fmt::format("seed {} ended its process (status {:#x}); its case is\n{}",
                             all[job].seed.load(), status, simulation::to_text(crashed));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::cout << fmt::format("{} seeds from {} on in {:.1f} s: {:.0f} a minute\n{}", coverage.cases,
                           arguments.first, seconds,
                           static_cast<double>(coverage.cases) / seconds * 60, coverage.to_text());
  munmap(memory, jobs * sizeof(Shared));
  return failed ? 1 : 0;
}

int run_file(const std::string& file, bool with_trace) {
  const Case from = read_case(file);
  if (with_trace) std::cout << run(from, true).trace;
  const Findings findings = findings_of(from, nullptr, true);
  if (!findings.empty()) std::cout << file << " found:\n" << to_text(findings);
  return findings.empty() ? 0 : 1;
}

// Runs the kept cases, each of which found a mistake once.
int run_known_cases(const std::string& folder) {
  std::vector<std::string> files;
  if (fs::is_directory(folder))
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.path().extension() == ".case") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  int failed = 0;
  for (const auto& file : files) failed |= run_file(file, false);
  std::cout << fmt::format("{} known cases\n", files.size());
  return failed;
}

}  // namespace
}  // namespace tutti::simulation

int main(int argc, char** argv) {
  using namespace tutti::simulation;
  Arguments arguments;
  CLI::App app{"Simulates communicators and looks for promises that they do not keep."};
  app.add_option("--seeds", arguments.seeds, "How many drawn cases");
  app.add_option("--from", arguments.first, "The first seed");
  app.add_option("--jobs", arguments.jobs, "Processes at once")->check(CLI::Range(1, 256));
  app.add_option("--minutes", arguments.minutes, "Ends after so long; 0: after all seeds");
  app.add_option("--scale", arguments.scale, "2: twice as many steps and tensors")
      ->check(CLI::Range(1, 8));
  app.add_option("--tier", arguments.tier,
                 "What the ranks' backend is: a model, real streams, or these and shared memory")
      ->check(CLI::IsMember({"operations", "bytes", "shared"}));
  app.add_flag("--without-faults", arguments.without_faults, "Draws programs alone");
  app.add_flag("--list", arguments.lists,
               "Goes on after a finding: a line a seed, nothing is shrunk");
  app.add_option("--case", arguments.file, "Runs the case of this file alone");
  app.add_flag("--trace", arguments.with_trace, "With --case: prints what each rank does");
  app.add_option("--print", arguments.printed, "Prints the case of this seed alone");
  app.add_option("--cases", arguments.cases, "The folder of cases that run first");
  app.add_option("--commit", arguments.commit, "Is printed with what is found");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!arguments.file.empty()) return run_file(arguments.file, arguments.with_trace);
    if (arguments.printed) {
      std::cout << to_text(draw(*arguments.printed, arguments.draws()));
      return 0;
    }
    const int known = run_known_cases(arguments.cases);
    return run_all_seeds(arguments) | known;
  } catch (const std::exception& error) {
    std::cerr << "simulate: " << error.what() << "\n";
    return 2;
  }
}
