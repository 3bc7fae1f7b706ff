// Runs simulated worlds of drawn cases, or of one case in a file, and reports their broken
// promises.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>

#include "tests/simulation/coverage.h"
#include "tests/simulation/draw.h"
#include "tests/simulation/judge/invariants.h"
#include "tests/simulation/judge/shrink.h"
#include "tests/simulation/run.h"
#include "tests/simulation/seeds.h"
#include "tests/simulation/text.h"

namespace tutti::simulation {
namespace {

namespace fs = std::filesystem;

struct Arguments : SeedArguments {
  int scale = 1;
  std::optional<uint64_t> printed;
  std::string file, cases = TUTTI_SOURCE_DIR "/tests/simulation/cases", commit;
  std::string tier = "operations";
  bool with_trace = false, without_faults = false;

  DrawOptions draws() const {
    const auto at = std::ranges::find(kTierNames, tier);
    return {.without_faults = without_faults,
            .scale = scale,
            .tier = static_cast<Tier>(at - kTierNames.begin())};
  }
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

int run_drawn_cases(const Arguments& arguments) {
  return run_all_seeds<Coverage>(
      arguments,
      [&](uint64_t seed, Coverage& coverage) -> std::string {
        const Case drawn = draw(seed, arguments.draws());
        const Findings findings = findings_of(drawn, &coverage, seed % 64 == 0);
        if (findings.empty()) return {};
        return arguments.lists ? fmt::format("seed {}{}", seed, to_text({findings.front()}))
                               : report(arguments, seed, drawn, findings);
      },
      [&](uint64_t seed) { return simulation::to_text(draw(seed, arguments.draws())); });
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
  arguments.add_to(app);
  app.add_option("--scale", arguments.scale, "2: twice as many steps and tensors")
      ->check(CLI::Range(1, 8));
  app.add_option("--tier", arguments.tier,
                 "What the ranks' backend is: a model, real streams, or these and shared memory")
      ->check(CLI::IsMember({"operations", "bytes", "shared"}));
  app.add_flag("--without-faults", arguments.without_faults, "Draws programs alone");
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
    return run_drawn_cases(arguments) | known;
  } catch (const std::exception& error) {
    std::cerr << "simulate: " << error.what() << "\n";
    return 2;
  }
}
