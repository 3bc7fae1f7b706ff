#include "tutti/backends/network/network_probe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/backends/support/tcp_rank_processes.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/scratch_folder.h"
#include "tutti/base/error.h"

namespace tutti::test {
namespace {

const std::vector<int> kTwoByTwo = {0, 0, 1, 1};

// Rank 0 creates this file if the machine was too busy for the measurement, which must be made
// within 0.3 s. The test then runs the job once more.
std::string busy_file;

void ask_for_another_job(const Context& context) {
  if (context.rank == 0) std::ofstream(busy_file) << "busy\n";
}

// The backend that a rank got at its start, its log lines, and how long the start took.
struct Start {
  std::unique_ptr<Backend> backend;
  std::vector<std::string> infos, warnings;
  double seconds = 0;
  bool was_probed() const {
    return infos.size() == 1 && infos[0].find("(measured in ") != std::string::npos;
  }
  bool was_saved() const {
    return infos.size() == 1 && infos[0].find("(saved in ") != std::string::npos;
  }
};

// The algorithms for an allreduce of each size, and for the other kinds that depend on the hosts.
std::string choices(const Backend& backend) {
  std::string text;
  for (const auto kind : {CollectiveKind::allreduce, CollectiveKind::reduce_scatter,
                          CollectiveKind::allgather, CollectiveKind::broadcast})
    for (int64_t count = 1; count <= 16 << 20; count *= 2) {
      Collective collective;
      collective.kind = kind;
      collective.send_counts = std::span(&count, 1);
      text += fmt::format("{} ", backend.algorithm(collective));
    }
  return text;
}

// Connects, and checks that all ranks chose the same and can then work.
bool start(Context& context, Start& seen) {
  context.log = [&](LogLevel level, std::string_view line) {
    (level == LogLevel::warning ? seen.warnings : seen.infos).emplace_back(line);
  };
  const auto begin = Clock::now();
  seen.backend = find_backend(context.name).connect(context);
  seen.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const auto own = choices(*seen.backend);
  if (context.store->set_once("choices", own) != own)
    return complain(context, "chooses otherwise: " + own);
  if (context.rank > 0 && seen.infos.size() + seen.warnings.size() > 0)
    return complain(context, "says something");
  for (const auto& line : seen.infos) std::fprintf(stderr, "%s\n", line.c_str());
  return true;
}

bool finish(Context& context, Start& seen, bool as_expected = true) {
  const auto is_late = [](const std::string& line) {
    return line.find("did not answer in time") != std::string::npos;
  };
  if (!as_expected && std::ranges::any_of(seen.infos, is_late)) {
    ask_for_another_job(context);
    as_expected = true;
  }
  if (!as_expected)
    for (const auto* lines : {&seen.infos, &seen.warnings})
      for (const auto& line : *lines) complain(context, "not expected: " + line);
  if (!sums_are_right(context, *seen.backend, 100'000, 1)) return false;
  meet(context, "done");
  seen.backend->transport()->goodbye(2);
  return as_expected || complain(context, "is not as expected");
}

class NetworkProbeTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto reason = NetworkNamespaces::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    busy_file = folder_.path() + "/busy";
  }
  /// Runs a job with this probe; every rank must return true.
  void run(NetworkNamespaces& hosts, const std::vector<int>& layout, Probe::Mode mode,
           const std::function<bool(Context&)>& body) {
    constexpr int kMostJobs = 6;
    for (int job = 0; job < kMostJobs; ++job) {
      RankProcesses(hosts, layout).with(builtin_backends()).run([&](Context& context) {
        context.name = GetParam();
        context.probe = {mode, file_};
        return body(context);
      });
      if (!std::filesystem::remove(busy_file)) return;
    }
    FAIL() << "the link was never measured as it is";
  }
  using Expectation = std::function<bool(const Context&, const Start&)>;
  void expect(NetworkNamespaces& hosts, Probe::Mode mode, const Expectation& holds) {
    run(hosts, kTwoByTwo, mode, [&](Context& context) {
      Start seen;
      return start(context, seen) &&
             finish(context, seen, context.rank > 0 || holds(context, seen));
    });
  }

  const ScratchFolder folder_;
  const std::string file_ = folder_.path() + "/networks";
};
INSTANTIATE_TEST_SUITE_P(Backends, NetworkProbeTest, testing::Values("tcp", "hierarchical"));

TEST_P(NetworkProbeTest, IsMadeAtTheFirstStartAndSavedForTheNext) {
  NetworkNamespaces hosts(2);
  expect(hosts, Probe::Mode::when_unknown, [](const Context&, const Start& seen) {
    return seen.was_probed() && seen.warnings.empty() && seen.backend->counters().messages_sent > 0;
  });
  expect(hosts, Probe::Mode::when_unknown, [](const Context&, const Start& seen) {
    return seen.was_saved() && seen.warnings.empty() && seen.backend->counters().messages_sent == 0;
  });
  expect(hosts, Probe::Mode::always,
         [](const Context&, const Start& seen) { return seen.was_probed(); });
  expect(hosts, Probe::Mode::off, [](const Context&, const Start& seen) {
    return seen.infos.empty() && seen.backend->counters().messages_sent == 0;
  });
}

TEST_P(NetworkProbeTest, OfASlowLinkHasTwoLevelsChosen) {
  NetworkNamespaces hosts(2);
  for (int host = 0; host < 2; ++host) {
    int status = -1;
    hosts.within(host, [&] {
      status = std::system("tc qdisc add dev eth0 root tbf rate 200mbit burst 64kb latency 50ms");
    });
    if (status != 0) GTEST_SKIP() << "tc cannot shape a link here";
  }
  run(hosts, kTwoByTwo, Probe::Mode::always, [](Context& context) {
    Start seen;
    if (!start(context, seen)) return false;
    const auto all = choices(*seen.backend);
    if (all.find("hierarchical") == all.npos) ask_for_another_job(context);
    return finish(context, seen);
  });
}

TEST_P(NetworkProbeTest, IsLeftOutWhereChoicesMustNotVary) {
  NetworkNamespaces hosts(2);
  for (const auto determinism : {Determinism::run, Determinism::rank_order})
    run(hosts, kTwoByTwo, Probe::Mode::always, [&](Context& context) {
      context.determinism = determinism;
      Start seen;
      return start(context, seen) &&
             finish(context, seen,
                    seen.infos.empty() && seen.backend->counters().messages_sent == 0);
    });
}

TEST_P(NetworkProbeTest, WorksForEveryLayout) {
  NetworkNamespaces hosts(3);
  for (const auto& layout :
       {std::vector{0, 1}, std::vector{0, 1, 1}, std::vector{0, 1, 2, 2}, std::vector{0, 1, 0, 1}})
    run(hosts, layout, Probe::Mode::always, [&](Context& context) {
      Start seen;
      return start(context, seen) && finish(context, seen, context.rank > 0 || seen.was_probed());
    });
}

TEST_P(NetworkProbeTest, ADamagedFileIsOneWarningAndWrittenAnew) {
  NetworkNamespaces hosts(2);
  std::ofstream(file_) << "nonsense\n";
  expect(hosts, Probe::Mode::when_unknown, [&](const Context&, const Start& seen) {
    return seen.was_probed() && seen.warnings.size() == 1 &&
           seen.warnings[0].find(file_ + " is damaged at line 1") != std::string::npos;
  });
  expect(hosts, Probe::Mode::when_unknown, [](const Context&, const Start& seen) {
    return seen.was_saved() && seen.warnings.empty();
  });
}

TEST_P(NetworkProbeTest, AFileThatCannotBeWrittenIsOneWarning) {
  NetworkNamespaces hosts(2);
  run(hosts, kTwoByTwo, Probe::Mode::when_unknown, [](Context& context) {
    context.probe.file = "/dev/null/networks";
    Start seen;
    return start(context, seen) &&
           finish(context, seen,
                  context.rank > 0 || (seen.was_probed() && seen.warnings.size() == 1));
  });
}

// One rank does not take part in the probe. The others soon use the default table instead, and the
// messages already sent do no harm.
TEST_P(NetworkProbeTest, APeerThatDoesNotAnswerIsNotWaitedForLong) {
  NetworkNamespaces hosts(2);
  run(hosts, kTwoByTwo, Probe::Mode::when_unknown, [](Context& context) {
    if (context.rank == 2) context.probe.mode = Probe::Mode::off;
    Start seen;
    if (!start(context, seen)) return false;
    if (seen.seconds > 5) return complain(context, "waited too long");
    return finish(context, seen,
                  context.rank > 0 ||
                      (seen.infos.size() == 1 && seen.infos[0].find("(rank 2 did not answer in "
                                                                    "time)") != std::string::npos));
  });
}

}  // namespace
}  // namespace tutti::test
