// The leaving table: the error that each kind of end of a rank causes on the others, and its delay.
// If a rank closes, returns, throws, exits or is killed, the others detect that from evidence, not
// by a timeout. A stopped rank is silent after the peer timeout. A late rank is never called
// silent.
//
// LEAVING_TABLE=1 runs and prints the whole table (6 backends, 2 to 4 ranks, every way; about five
// minutes). Otherwise a part runs. The simulation covers ends at any moment and any order of
// messages.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

constexpr double kPeerTimeout = 1.0;

struct Row {
  std::string backend, ending, way;
  int ranks = 0, victim = 0;
  std::vector<double> milliseconds;  // of each other rank
  std::string text;                  // error of the first other rank
  std::string problem;               // empty if all is as promised
};

// True if all rows run, by hand and alone. The daily run has a part of the rows beside other tests.
// It checks the texts, and allows ten times the delay.
bool is_whole() { return std::getenv("LEAVING_TABLE") != nullptr; }

// The error that each ending must cause.
struct Promise {
  std::string code, text;
  double most_ms;
};
const std::map<std::string, Promise>& promises() {
  static const std::map<std::string, Promise> table = {
      {"close", {"peer left", "closed its Communicator, so nothing that needs all", 1000}},
      {"return", {"peer left", "closed its Communicator, so nothing that needs all", 1000}},
      {"fail", {"peer left", "closed its Communicator, so nothing that needs all", 1000}},
      {"throw",
       {"peer left",
        "closed its Communicator because of an error (an exception; its own output says which), so "
        "nothing that needs all ranks can be done any more; shrink() gives",
        1000}},
      {"exit", {"peer lost", "exited with code 0 without closing its Communicator", 1000}},
      {"kill", {"peer lost", "was killed by signal 9", 1000}},
      {"stop", {"peer silent", "is silent: no answer for ", kPeerTimeout * 1000 + 1000}},
  };
  return table;
}

std::string output_of(const std::string& command, int& code) {
  std::string output;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen(("timeout -k 1 40 " + command + " 2>&1").c_str(), "r"), nullptr);
  char buffer[4096];
  for (size_t size; (size = std::fread(buffer, 1, sizeof buffer, pipe.get())) > 0;)
    output.append(buffer, size);
  const int status = ::pclose(pipe.release());
  code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

void judge_late(Row& row, const std::string& output) {
  const std::regex goes_on("rank (\\d+) goes on after (-?\\d+) ms");
  for (std::sregex_iterator match(output.begin(), output.end(), goes_on), end; match != end;
       ++match) {
    row.milliseconds.push_back(std::stod((*match)[2]));
    row.text = "goes on";
  }
  if (static_cast<int>(row.milliseconds.size()) != row.ranks - 1) row.problem = "a rank failed";
  if (output.find("silent") != output.npos) row.problem = "called silent";
}

void judge(Row& row, const std::string& output, int code) {
  if (output.find("unexpected") != output.npos) row.problem = "unexpected";
  // tutti-run must name the victim, even if the other processes end before it, or if the error that
  // it caused was reported before the victim failed.
  const bool fails = row.backend != "memory" && (row.ending == "throw" || row.ending == "fail");
  if (code != (row.ending == "kill" ? 137 : fails ? 3 : 0))
    row.problem = fmt::format("ended with {}", code);
  if (fails && output.find(fmt::format("tutti-run: rank {} (", row.victim)) == output.npos)
    row.problem = "the verdict names another";
  if (row.ending == "late") return judge_late(row, output);
  const auto& promise = promises().at(row.ending);
  const std::regex heard(
      "rank (\\d+) heard of rank (-?\\d+) after (-?\\d+) ms \\(([a-z ]+), tensor \"(\\w*)\"\\): "
      "(.*)");
  for (std::sregex_iterator match(output.begin(), output.end(), heard), end; match != end;
       ++match) {
    row.milliseconds.push_back(std::stod((*match)[3]));
    const std::string text = (*match)[6];
    if (row.text.empty()) row.text = text;
    if ((*match)[2] != std::to_string(row.victim)) row.problem = "blames another";
    if ((*match)[4] != promise.code || text.find(promise.text) == text.npos)
      row.problem = "reads otherwise";
    if ((*match)[5] != "x") row.problem = "names no tensor";
    if (row.milliseconds.back() > (is_whole() ? 1 : 10) * promise.most_ms) row.problem = "too late";
  }
  if (static_cast<int>(row.milliseconds.size()) != row.ranks - 1) row.problem = "a rank is missing";
}

Row run_row(const std::string& backend, int ranks, const std::string& way,
            const std::string& ending, int victim) {
  Row row{backend, ending, way, ranks, victim, {}, {}, {}};
  const auto stamp = fmt::format("{}leaving_stamp_{}", testing::TempDir(), ::getpid());
  std::filesystem::remove(stamp);
  // Two levels on two named hosts, which are the same machine.
  const std::string program =
      backend == "hierarchical"
          ? "sh -c 'TUTTI_HOST=host$((TUTTI_RANK % 2)) exec \"$0\" \"$@\"' '" LEAVING_RANK "'"
          : "'" LEAVING_RANK "'";
  int code = -1;
  const auto output = output_of(
      fmt::format("env TUTTI_BACKEND={} TUTTI_PEER_TIMEOUT={} '{}' -np {} {} {} {} {} {}", backend,
                  kPeerTimeout, TUTTI_RUN, ranks, program, victim, ending, way, stamp),
      code);
  std::filesystem::remove(stamp);
  judge(row, output, code);
  EXPECT_EQ(row.problem, "") << fmt::format("{} {} ranks {} {} of rank {}:\n", backend, ranks, way,
                                            ending, victim)
                             << output;
  return row;
}

// Ranks that are threads: none of them can exit or be killed alone.
Row run_threads_row(int ranks, const std::string& way, const std::string& ending, int victim) {
  Row row{"memory", ending, way, ranks, victim, {}, {}, {}};
  std::mutex mutex;
  Clock::time_point stamp;
  std::string output;
  const auto store = make_memory_store();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      auto options = Options::thread_rank(rank, ranks, store);
      options.replay = way == "replayed";
      options.peer_timeout = kPeerTimeout;
      options.log = [&](LogLevel, std::string_view line) {
        const std::lock_guard lock(mutex);
        output += fmt::format("{}\n", line);
      };
      auto comm = Communicator::create(options);
      std::vector<float> values(5000, 1.0f);
      const auto step = [&] {
        if (way == "blocking")
          comm->allreduce_blocking("x", values);
        else
          comm->allreduce("x", values).wait();
      };
      for (int i = 0; i < 12; ++i) step();
      if (rank == victim) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        {
          const std::lock_guard lock(mutex);
          stamp = Clock::now();
        }
        if (ending == "close") {
          comm.reset();
          std::this_thread::sleep_for(std::chrono::milliseconds(500));
        } else if (ending == "throw") {
          try {
            const auto unwound = std::move(comm);
            throw std::exception();
          } catch (const std::exception&) {
          }
        } else if (ending == "late") {
          std::this_thread::sleep_for(std::chrono::milliseconds(2500));
          step();
        }
        return;
      }
      std::string line = fmt::format("rank {} goes on after", rank), detail;
      try {
        step();
      } catch (const Error& error) {
        line = fmt::format("rank {} heard of rank {} after", rank, error.rank());
        detail = fmt::format(" ({}, tensor \"{}\"): {}", to_string(error.code()), error.tensor(),
                             error.what());
      }
      const std::lock_guard lock(mutex);
      const double ms = std::chrono::duration<double>(Clock::now() - stamp).count() * 1000;
      output += fmt::format("{} {:.0f} ms{}\n", line, ms, detail);
    });
  for (auto& thread : threads) thread.join();
  judge(row, output, 0);
  EXPECT_EQ(row.problem, "") << fmt::format("memory {} ranks {} {} of rank {}:\n", ranks, way,
                                            ending, victim)
                             << output;
  return row;
}

void print(const std::vector<Row>& rows) {
  std::map<std::string, std::vector<double>> by_ending;
  fmt::print("| backend | ranks | way | ending | ms on the others | text |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- |\n");
  for (const auto& row : rows) {
    std::string times;
    for (const double ms : row.milliseconds) {
      times += fmt::format("{}{:.0f}", times.empty() ? "" : " ", ms);
      by_ending[row.ending].push_back(ms);
    }
    fmt::print("| {} | {} | {} | {} | {} | {}{} |\n", row.backend, row.ranks, row.way, row.ending,
               times, row.problem.empty() ? "" : fmt::format("**{}** ", row.problem), row.text);
  }
  for (auto& [ending, times] : by_ending) {
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2], worst = times.back();
    fmt::print("{}: {} ranks heard, median {:.0f} ms, worst {:.0f} ms\n", ending, times.size(),
               median, worst);
    if (is_whole() && ending != "stop" && ending != "late") {
      EXPECT_LT(median, 200) << ending;
    }
  }
  std::fflush(stdout);
}

// The error and its receivers do not depend on the backend, so the daily run has all endings over
// tcp and between threads only. The other backends must deliver a farewell (also if the process
// ends right after it), detect an exit, and deliver answers of a late rank. faults_test.cc and
// kinds_test.cc kill and stop ranks over them.
bool is_of_every_day(const std::string& backend, const std::string& ending) {
  if (backend == "tcp" || backend == "memory") return true;
  return ending == "close" || ending == "return" || ending == "exit" || ending == "late";
}

class LeavingTable : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, LeavingTable,
                         testing::Values("memory", "shm", "tcp", "hierarchical", "gloo", "ucx"),
                         [](const auto& info) { return info.param; });

TEST_P(LeavingTable, NamesEachEndByItsEvidence) {
  const auto backend = GetParam();
  if (backend == "gloo" && !TUTTI_HAS_GLOO) GTEST_SKIP() << "backend gloo is not built here";
  if (backend == "ucx" && !TUTTI_HAS_UCX) GTEST_SKIP() << "backend ucx is not built here";
  std::vector<std::string> endings = {"close", "return", "late", "throw"};
  if (backend != "memory")
    endings = {"close", "return", "exit", "kill", "stop", "late", "throw", "fail"};
  const char* ways[] = {"replayed", "negotiated", "blocking"};
  std::vector<Row> rows;
  for (const int ranks : {2, 3, 4})
    for (size_t w = 0; w < std::size(ways); ++w)
      for (size_t e = 0; e < endings.size(); ++e) {
        // The daily run has 3 ranks, and each ending in one of the ways.
        if (!is_whole() && (ranks != 3 || (w + e) % 3 != 0)) continue;
        if (!is_whole() && !is_of_every_day(backend, endings[e])) continue;
        const int victim = static_cast<int>(w + e / 3) % ranks;
        rows.push_back(backend == "memory" ? run_threads_row(ranks, ways[w], endings[e], victim)
                                           : run_row(backend, ranks, ways[w], endings[e], victim));
      }
  print(rows);
}

}  // namespace
}  // namespace tutti
