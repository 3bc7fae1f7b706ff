// Compares an allreduce over tcp with plain sockets in the same processes. The sockets have the
// traffic of a ring: every rank sends 2(n-1)/n of the bytes to the right and receives the same
// number from the left.

#include "benchmarks/common/pairs.h"
#include "benchmarks/common/program.h"
#include "benchmarks/common/sizes.h"
#include "benchmarks/common/words.h"
#include "benchmarks/limits/ring.h"

namespace tutti::benchmarks {

namespace {

void run_allreduce(const Flags& flags, ForkTeam& team, const std::string& folder) {
  auto hosts = split_words(flags.text("hosts"));
  if (hosts.empty()) hosts.assign(static_cast<size_t>(team.size()), "127.0.0.1");
  if (hosts.size() != static_cast<size_t>(team.size()))
    throw std::invalid_argument("--hosts must name one address for each rank");
  const int sockets = flags.whole("sockets");
  if (sockets < 1 || sockets > 64) throw std::invalid_argument("--sockets must be from 1 to 64");
  Ring ring(team, hosts, sockets, flags.text("congestion"));
  const auto comm = make_communicator(team, folder, "tcp", hosts[static_cast<size_t>(team.rank())],
                                      flags.text("congestion"));
  const auto own = Pattern::of_rank(team.rank()), reduced = Pattern::reduced(team.size());
  for (const auto bytes : parse_sizes(flags.text("bytes"), flags.whole("factor"))) {
    const int64_t count = bytes / 4, moved = 2 * bytes * (team.size() - 1) / team.size();
    const auto data = make_buffer(count);
    const std::span values(data.get(), static_cast<size_t>(count));
    const auto name = "x" + std::to_string(bytes);
    const auto ours = [&] { comm->allreduce_blocking(name, values, ReduceOp::sum); };
    own.fill(data.get(), count);
    team.barrier();
    ours();
    const int64_t wrong = reduced.count_wrong(data.get(), count);
    std::fill(values.begin(), values.end(), 0.0f);  // sums of zeros stay zero
    auto row = measure_pairs(team, flags, ours, [&] { ring.exchange(moved); });
    row.case_name = "sockets.allreduce";
    row.way = flags.text("way");
    row.bytes = bytes;
    row.transport = "tcp";
    row.numbers["sockets"] = sockets;
    row.words["congestion"] = ring.congestion();
    row.words["limit"] = "plain sockets";
    row.wrong = team.sum(wrong);
    if (team.rank() == 0) print(row);
  }
}

int run(int argc, char** argv) {
  auto defaults = pair_flags();
  defaults.insert({{"ranks", "2"},
                   {"hosts", ""},
                   {"namespaces", ""},
                   {"congestion", "cubic"},
                   {"sockets", "1"}});
  defaults["bind"] = "1";
  const Flags flags(argc, argv, defaults);
  if (flags.case_name() != "allreduce")
    throw std::invalid_argument("the case is allreduce, not " + flags.case_name());
  const int ranks = flags.whole("ranks");
  if (ranks < 2) throw std::invalid_argument("--ranks must be at least 2");
  const ScratchFolder folder;
  return ForkTeam::run(ranks, split_words(flags.text("namespaces")),
                       static_cast<unsigned>(flags.whole("deadline")), flags.whole("bind") != 0,
                       [&](ForkTeam& team) { run_allreduce(flags, team, folder.path()); });
}

}  // namespace

}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  return tutti::benchmarks::run_program(tutti::benchmarks::run, argc, argv);
}
