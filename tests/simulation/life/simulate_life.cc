// Runs simulated jobs of drawn cases, in which ranks meet, split, die, shrink and start again.
// Reports their broken promises.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>

#include "tests/simulation/life/life_case.h"
#include "tests/simulation/life/life_judge.h"
#include "tests/simulation/life/life_world.h"
#include "tests/simulation/seeds.h"

namespace tutti::simulation {
namespace {

// What the seeds came to.
struct LifeTally {
  uint64_t cases = 0, calls = 0, ended_well = 0, deaths = 0;
  LifeLooks looks{};

  void add(const LifeTally& other) {
    cases += other.cases;
    calls += other.calls;
    ended_well += other.ended_well;
    deaths += other.deaths;
    for (size_t i = 0; i < looks.size(); ++i) looks[i] += other.looks[i];
  }
  std::string to_text() const {
    auto text = fmt::format("calls: {} ended well, {} did not; {} deaths\nlooks:", ended_well,
                            calls, deaths);
    for (size_t i = 1; i < looks.size(); ++i) text += fmt::format(" L{} {}", i, looks[i]);
    return text + "\n";
  }
};

std::string to_text(const std::vector<LifeFinding>& findings) {
  std::string text;
  for (const auto& finding : findings)
    text += finding.promise == 0 ? fmt::format("  the world: {}\n", finding.text)
                                 : fmt::format("  L{}: {}\n", finding.promise, finding.text);
  return text;
}

std::string run_seed(uint64_t seed, bool lists, LifeTally& tally) {
  const LifeCase drawn = draw_life(seed);
  const LifeRecord record = World(drawn).run();
  ++tally.cases;
  for (const auto& call : record.calls) ++(call.well ? tally.ended_well : tally.calls);
  for (const auto& process : record.processes) tally.deaths += process.died != kNever;
  const auto findings = check_life(drawn, record, &tally.looks);
  if (findings.empty()) return {};
  if (lists) return fmt::format("seed {}{}", seed, to_text({findings.front()}));
  return fmt::format("seed {} found:\n{}its case is\n{}replay: simulate_life --trace {}\n", seed,
                     to_text(findings), to_text(drawn), seed);
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
  SeedArguments arguments;
  std::optional<uint64_t> printed, traced;
  CLI::App app{"Simulates jobs whose ranks meet, die and go on, and looks for broken promises."};
  arguments.add_to(app);
  app.add_option("--print", printed, "Prints the case of this seed alone");
  app.add_option("--trace", traced, "Runs this seed and prints what each rank does");
  CLI11_PARSE(app, argc, argv);
  try {
    if (printed) {
      std::cout << to_text(draw_life(*printed));
      return 0;
    }
    if (traced) return run_one(*traced);
    return run_all_seeds<LifeTally>(
        arguments,
        [&](uint64_t seed, LifeTally& tally) { return run_seed(seed, arguments.lists, tally); },
        [](uint64_t seed) { return to_text(draw_life(seed)); });
  } catch (const std::exception& error) {
    std::cerr << "simulate_life: " << error.what() << "\n";
    return 2;
  }
}
