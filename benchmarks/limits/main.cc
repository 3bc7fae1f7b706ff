// Measures the limits of this machine in the same run as the programs compared with them. Two
// processes add in each other's memory, and a probe finds how the cores are placed.
#include <functional>

#include "benchmarks/common/program.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/limits/memory.h"

namespace tutti::benchmarks {

namespace {

int run(int argc, char** argv) {
  const Flags flags(argc, argv,
                    {{"bytes", "4..64M"},
                     {"factor", "4"},
                     {"ranks", "2"},
                     {"repetitions", "5"},
                     {"repetition-ms", "20"},
                     {"warmup", "1"},
                     {"cell-ms", "2000"},
                     {"deadline", "120"}});
  const auto& name = flags.case_name();
  const int ranks = flags.whole("ranks");
  const auto start = [&](const std::function<void(ForkTeam&)>& body) {
    return ForkTeam::run(ranks, {}, static_cast<unsigned>(flags.whole("deadline")), true, body);
  };
  if (name != "mapped_add" && name != "probe")
    throw std::invalid_argument("the cases are mapped_add and probe, not " + name);
  if (ranks != 2) throw std::invalid_argument(name + " takes 2 ranks");
  if (name == "probe") {
    SharedMemory shared(4096);
    return start([&](ForkTeam& team) { run_probe(flags, team, shared); });
  }
  int64_t most = 0;
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor")))
    most = std::max(most, bytes);
  // The first page holds flags. Two buffers follow, and each begins on a page.
  SharedMemory shared(static_cast<size_t>(2 * most) + size_t{6} * 4096);
  return start([&](ForkTeam& team) { run_mapped_add(flags, team, shared); });
}

}  // namespace

}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  return tutti::benchmarks::run_program(tutti::benchmarks::run, argc, argv);
}
