#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/communicator.h"

namespace tutti::test {

using RankFunction = std::function<void(Communicator&)>;
using Tune = std::function<void(Options&)>;

/// True if tests should be short: in `./dev sanitize`, but not with `--full` and not in `./dev
/// check`.
#if defined(TUTTI_EVERY_DAY) && (defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__))
inline constexpr bool kIsBrief = true;
#else
inline constexpr bool kIsBrief = false;
#endif
#ifdef __SANITIZE_THREAD__
inline constexpr bool kIsSlow = true;
#else
inline constexpr bool kIsSlow = kIsBrief;
#endif

/// Returns how often to repeat a random case, or cases that differ only by a number: `times`, or a
/// quarter of it in short runs and under tsan. tsan finds as much in fewer repetitions, and each
/// takes many times as long.
constexpr int repetitions(int times) { return kIsSlow ? times / 4 : times; }

/// Returns the numbers of ranks to test one after another. In short runs that is only three: the
/// middle rank has a rank on both sides.
inline std::vector<int> rank_counts(std::vector<int> all) {
  return kIsBrief ? std::vector{3} : all;
}

/// Returns options for ranks over this backend.
Tune over(std::string backend);

/// Fails the test unless an allreduce sums 10 ones of every rank. Ranks call it after an error that
/// must not end the communicator.
void still_works(Communicator& comm);

/// Calls `body` with each number from `first` to before `end`, in a thread each. What it throws
/// becomes a test failure that names the rank.
void on_threads(int first, int end, const std::function<void(int rank)>& body);

/// Returns what each of `size` ranks hears whose create() is refused, which all hear soon; `code`,
/// if given, is that of the error.
std::vector<std::string> create_refusals(int size, const Tune& tune,
                                         std::optional<ErrorCode> code = {});

/// Runs `body` on `size` ranks that are threads of this process. Each rank has its own Communicator
/// over one memory store. An exception of a rank becomes a test failure that names the rank. gtest
/// assertions inside `body` work; a fatal one ends that rank's body. If the run takes more than
/// `seconds`, the process ends and names the ranks that still run.
void run_threads(int size, const RankFunction& body, const Tune& tune = {}, double seconds = 60);

/// Does the same with ranks that are processes over a store of files. Must be called before this
/// process has started a thread. Exceptions and gtest failures of a child become failures of the
/// parent that name the rank. Children that take more than `seconds` are killed and named. The rank
/// `dies` must end by a signal.
void run_processes(int size, const RankFunction& body, const Tune& tune = {}, double seconds = 60,
                   int dies = -1);

/// Does the same on hosts that are network namespaces, over a TCP store on host 0: rank r runs on
/// host layout[r]. Skips the test with a reason if there can be no namespaces.
void run_hosts(const std::vector<int>& layout, const RankFunction& body, const Tune& tune = {},
               double seconds = 60);

}  // namespace tutti::test
