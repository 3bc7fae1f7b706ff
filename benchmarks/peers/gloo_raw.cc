// Compares an allreduce over backend gloo with a direct call of Gloo, with the same kind of
// algorithm, interface and processes.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>

#include "benchmarks/common/pairs.h"
#include "benchmarks/common/program.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/peers/gloo_team.h"

namespace tutti::benchmarks {

namespace {

std::function<void()> make_raw(const std::string& algorithm, const ContextPtr& context, float* data,
                               int64_t count) {
  if (algorithm == "halving_doubling") {
    auto held = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
        context, std::vector<float*>{data}, static_cast<int>(count));
    return [held] { held->run(); };
  }
  auto options = std::make_shared<gloo::AllreduceOptions>(context);
  options->setAlgorithm(algorithm == "ring" ? gloo::AllreduceOptions::Algorithm::RING
                                            : gloo::AllreduceOptions::Algorithm::BCUBE);
  options->setOutput(data, static_cast<size_t>(count));
  using Sum = void (*)(void*, const void*, const void*, size_t);
  options->setReduceFunction(static_cast<Sum>(&gloo::sum<float>));
  return [options] { gloo::allreduce(*options); };
}

void run_allreduce(const Flags& flags, ForkTeam& team, const std::string& folder) {
  const auto context = connect_gloo("127.0.0.1", team, folder);
  const auto comm = make_communicator(team, folder, "gloo");
  const auto own = Pattern::of_rank(team.rank()), reduced = Pattern::reduced(team.size());
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor"))) {
    const int64_t count = bytes / 4;
    const auto data = make_buffer(count);
    const std::span values(data.get(), static_cast<size_t>(count));
    // "same" is the algorithm that Tutti's backend chooses at this size.
    auto algorithm = flags.text("algorithm");
    if (algorithm == "same") algorithm = bytes < 8 << 20 ? "halving_doubling" : "ring";
    const auto raw = make_raw(algorithm, context, data.get(), count);
    const auto name = "x" + std::to_string(bytes);
    const auto ours = [&] {
      if (flags.text("way") == "named")
        comm->allreduce(name, values, ReduceOp::sum).wait();
      else
        comm->allreduce_blocking(name, values, ReduceOp::sum);
    };
    int64_t wrong = 0;
    for (const auto& call : {std::function<void()>(ours), raw}) {
      own.fill(data.get(), count);
      team.barrier();
      call();
      wrong += reduced.count_wrong(data.get(), count);
    }
    std::fill(values.begin(), values.end(), 0.0f);  // sums of zeros stay zero
    auto row = measure_pairs(team, flags, ours, raw);
    row.case_name = "gloo.allreduce";
    row.way = flags.text("way");
    row.bytes = bytes;
    row.transport = "tcp";
    row.words["algorithm"] = algorithm;
    row.wrong = team.sum(wrong);
    if (team.rank() == 0) print(row);
  }
}

int run(int argc, char** argv) {
  auto defaults = pair_flags();
  defaults["algorithm"] = "same";
  defaults["ranks"] = "2";
  const Flags flags(argc, argv, defaults);
  if (flags.case_name() != "allreduce")
    throw std::invalid_argument("the case is allreduce, not " + flags.case_name());
  const ScratchFolder folder;
  return ForkTeam::run(flags.whole("ranks"), {}, static_cast<unsigned>(flags.whole("deadline")),
                       flags.whole("bind") != 0,
                       [&](ForkTeam& team) { run_allreduce(flags, team, folder.path()); });
}

}  // namespace

}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  return tutti::benchmarks::run_program(tutti::benchmarks::run, argc, argv);
}
