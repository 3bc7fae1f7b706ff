#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/communicator.h"

namespace tutti::test {

using RankFunction = std::function<void(Communicator&)>;
using Tune = std::function<void(Options&)>;

/// Whether to be brief: in `./dev sanitize`, but not in `--full` and `./dev check`.
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

/// How often to repeat what is drawn at random, or differs by a count alone: `times`, and a quarter
/// of it where to be brief and under tsan, which tells as much of fewer repetitions and takes many
/// times as long for each.
constexpr int repetitions(int times) { return kIsSlow ? times / 4 : times; }

/// Numbers of ranks to try one after another: all of them, or where to be brief three alone, of
/// which each has a rank before it and another one after.
inline std::vector<int> rank_counts(std::vector<int> all) {
  return kIsBrief ? std::vector{3} : all;
}

/// Options of ranks over this backend.
Tune over(std::string backend);

/// Fails the test unless an allreduce sums 10 ones of every rank: for ranks that have just refused
/// or given up something and must go on.
void still_works(Communicator& comm);

/// Calls `body` with each number from `first` to before `end`, in a thread each. What it throws
/// becomes a test failure that names the rank.
void on_threads(int first, int end, const std::function<void(int rank)>& body);

/// Returns what each of `size` ranks hears whose create() is refused, which all hear soon; `code`,
/// if given, is that of the error.
std::vector<std::string> create_refusals(int size, const Tune& tune,
                                         std::optional<ErrorCode> code = {});

/// Runs `body` on `size` ranks that are threads of this process, each with a Communicator of its
/// own over one memory store. What a rank throws becomes a test failure that names the rank; gtest
/// assertions inside `body` work (non-fatal ones, and fatal ones that end that rank's body). A run
/// that takes more than `seconds` ends the process, naming the ranks that are still in it.
void run_threads(int size, const RankFunction& body, const Tune& tune = {}, double seconds = 60);

/// The same on ranks that are processes over a store of files. To be called before this process has
/// started a thread. What a child throws, and its gtest failures, become failures here that name
/// the rank; children that take more than `seconds` are killed and named. `dies`: a rank that must
/// end by a signal.
void run_processes(int size, const RankFunction& body, const Tune& tune = {}, double seconds = 60,
                   int dies = -1);

/// The same on hosts that are network namespaces, over a TCP store on host 0: rank r runs on host
/// layout[r]. Skips the test, saying why, where namespaces cannot be made.
void run_hosts(const std::vector<int>& layout, const RankFunction& body, const Tune& tune = {},
               double seconds = 60);

}  // namespace tutti::test
