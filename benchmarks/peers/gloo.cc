// Measures Gloo's allreduce over TCP with each of its algorithms, of which the best counts. The
// other collectives are in gloo_kinds.cc.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/common/data.h"
#include "benchmarks/common/flags.h"
#include "benchmarks/common/fork_team.h"
#include "benchmarks/common/measure.h"
#include "benchmarks/common/program.h"
#include "benchmarks/common/row.h"
#include "benchmarks/common/scratch_folder.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/common/words.h"
#include "benchmarks/peers/gloo_team.h"

namespace tutti::benchmarks {

ContextPtr connect_gloo(const Flags& flags, const ForkTeam& team, const std::string& folder) {
  const auto hosts = split_words(flags.text("hosts"));
  return connect_gloo(hosts.empty() ? "127.0.0.1" : hosts.at(static_cast<size_t>(team.rank())),
                      team, folder);
}

namespace {

using Call = std::function<void()>;
struct Algorithm {
  const char* name;
  Call (*make)(const ContextPtr& context, float* data, int64_t count);
};

template <gloo::AllreduceOptions::Algorithm kKind>
Call make_new(const ContextPtr& context, float* data, int64_t count) {
  auto options = std::make_shared<gloo::AllreduceOptions>(context);
  options->setAlgorithm(kKind);
  options->setOutput(data, static_cast<size_t>(count));
  using Sum = void (*)(void*, const void*, const void*, size_t);
  options->setReduceFunction(static_cast<Sum>(&gloo::sum<float>));
  return [options] { gloo::allreduce(*options); };
}

template <template <class> class Old>
Call make_old(const ContextPtr& context, float* data, int64_t count) {
  auto algorithm =
      std::make_shared<Old<float>>(context, std::vector<float*>{data}, static_cast<int>(count));
  return [algorithm] { algorithm->run(); };
}

template <class T>
using RingChunked = gloo::AllreduceRingChunked<T>;
template <class T>
using HalvingDoubling = gloo::AllreduceHalvingDoubling<T>;

constexpr Algorithm kAlgorithms[] = {{"ring", make_new<gloo::detail::AllreduceOptionsImpl::RING>},
                                     {"bcube", make_new<gloo::detail::AllreduceOptionsImpl::BCUBE>},
                                     {"halving_doubling", make_old<HalvingDoubling>},
                                     {"ring_chunked", make_old<RingChunked>}};

void run_allreduce(const Flags& flags, ForkTeam& team, const std::string& folder) {
  const auto context = connect_gloo(flags, team, folder);
  const Method method = method_of(flags);
  const auto own = Pattern::of_rank(team.rank()), reduced = Pattern::reduced(team.size());
  const auto wanted = split_words(flags.text("algorithm"));
  const auto is_wanted = [&](const char* name) {
    return flags.text("algorithm") == "all" ||
           std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  };
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor"))) {
    const int64_t count = bytes / 4;
    const auto data = make_buffer(count);
    for (const auto& algorithm : kAlgorithms) {
      if (!is_wanted(algorithm.name)) continue;
      const auto call = algorithm.make(context, data.get(), count);
      const auto fill = [&] { own.fill(data.get(), count); };
      Row row{.program = "gloo", .case_name = flags.case_name(), .way = algorithm.name};
      row.bytes = bytes;
      row.ranks = team.size();
      row.transport = "tcp";
      row.words["variant"] = flags.text("variant");
      row.timing = measure(team, method, calls_before_overflow(team.size()), fill, call);
      fill();
      call();
      row.wrong = team.sum(reduced.count_wrong(data.get(), count));
      if (team.rank() == 0) print(row);
    }
  }
}

/// Times each of many small calls. Prints the median, the 99th percentile and the longest time.
void run_latency(const Flags& flags, ForkTeam& team, const std::string& folder) {
  const auto context = connect_gloo(flags, team, folder);
  const auto calls = flags.whole("calls");
  const int64_t count = parse_bytes(flags.text("bytes")) / 4;
  const auto data = make_buffer(count);
  const auto own = Pattern::of_rank(team.rank()), reduced = Pattern::reduced(team.size());
  for (const auto& algorithm : kAlgorithms) {
    if (algorithm.name != flags.text("algorithm")) continue;
    const auto call = algorithm.make(context, data.get(), count);
    std::vector<double> times;
    times.reserve(static_cast<size_t>(calls));
    team.barrier();
    for (int i = 0; i < calls; ++i) {
      if (i % calls_before_overflow(team.size()) == 0) own.fill(data.get(), count);
      const double begin = now_us();
      call();
      times.push_back(now_us() - begin);
    }
    own.fill(data.get(), count);
    call();
    Row row{.program = "gloo", .case_name = flags.case_name(), .way = algorithm.name};
    row.bytes = count * 4;
    row.ranks = team.size();
    row.transport = "tcp";
    row.wrong = team.sum(reduced.count_wrong(data.get(), count));
    std::sort(times.begin(), times.end());
    row.timing = {team.max(median(times)), times.front(), team.max(times.back()), 1, calls};
    row.numbers["p99_us"] = team.max(times[times.size() * 99 / 100]);
    if (team.rank() == 0) print(row);
    return;
  }
  throw std::invalid_argument("--algorithm " + flags.text("algorithm") + ": no such algorithm");
}

int run(int argc, char** argv) {
  const Flags flags(argc, argv,
                    {{"bytes", "4..64M"},
                     {"factor", "4"},
                     {"ranks", "2"},
                     {"algorithm", "all"},
                     {"calls", "10000"},
                     {"hosts", ""},
                     {"namespaces", ""},
                     {"bind", "1"},
                     {"variant", "shipped"},
                     {"repetitions", "5"},
                     {"repetition-ms", "20"},
                     {"warmup", "1"},
                     {"cell-ms", "2000"},
                     {"deadline", "120"}});
  const bool latency = flags.case_name() == "latency";
  const bool kind = is_gloo_kind(flags.case_name());
  if (!latency && !kind && flags.case_name() != "allreduce")
    throw std::invalid_argument("the cases are latency and the collectives, not " +
                                flags.case_name());
  const ScratchFolder folder;
  return ForkTeam::run(
      flags.whole("ranks"), split_words(flags.text("namespaces")),
      static_cast<unsigned>(flags.whole("deadline")), flags.whole("bind") != 0,
      [&](ForkTeam& team) {
        (latency ? run_latency : kind ? run_gloo_kind : run_allreduce)(flags, team, folder.path());
      });
}

}  // namespace

}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  return tutti::benchmarks::run_program(tutti::benchmarks::run, argc, argv);
}
