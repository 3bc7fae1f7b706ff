#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/common/data.h"
#include "benchmarks/common/flags.h"
#include "benchmarks/common/fork_team.h"
#include "benchmarks/common/measure.h"
#include "benchmarks/common/row.h"
#include "benchmarks/common/scratch_folder.h"
#include "tutti/core/communicator.h"

// Compares a call of Tutti with a direct call of the library under Tutti's backend, in the same two
// processes. Each pair of repetitions measures both; the side that begins alternates.

namespace tutti::benchmarks {

/// One of the two calls that are compared.
struct Side {
  std::function<void()> call;
  /// Called after a repetition. It does what the other rank needs to end its last call. May be
  /// null.
  std::function<void()> settle = {};
  std::vector<double> times = {};  // time per call, by pair
  int64_t stalls = 0;
};

/// A call is a stall if it takes longer than the median of its repetition by this time.
inline constexpr double kStall_us = 20'000;

inline std::map<std::string, std::string> pair_flags() {
  return {{"bytes", "4..64M"},     {"factor", "4"},        {"backend-settings", ""},
          {"way", "blocking"},     {"bind", "0"},          {"pairs", "31"},
          {"repetition-ms", "10"}, {"most-calls", "1000"}, {"cell-ms", "10000"},
          {"deadline", "170"}};
}

/// Makes `calls` calls and returns their mean time on the slowest rank.
inline double repeat(ForkTeam& team, Side& side, int64_t calls) {
  std::vector<double> each(static_cast<size_t>(calls));
  team.barrier();
  const double begin = now_us();
  double last = begin;
  for (auto& one : each) {
    side.call();
    const double now = now_us();
    one = now - last;
    last = now;
  }
  if (side.settle) side.settle();
  const double limit = median(each) + kStall_us;
  side.stalls += std::count_if(each.begin(), each.end(), [=](double one) { return one > limit; });
  return team.max((last - begin) / static_cast<double>(calls));
}

/// Returns a row for Tutti: its median time, the raw library's median, the median ratio of the
/// pairs (raw time over Tutti's time) with its 95 % bound, and the stalls of both.
inline Row measure_pairs(ForkTeam& team, const Flags& flags, std::function<void()> our_call,
                         std::function<void()> raw_call, std::function<void()> raw_settle = {}) {
  Side ours{std::move(our_call)}, raw{std::move(raw_call), std::move(raw_settle)};
  const double wanted_us = flags.number("repetition-ms") * 1000;
  const int64_t most_calls = flags.whole("most-calls");
  int64_t calls = 1;
  // First both sides settle: plans are recorded and connections are made. The number of calls
  // follows from the faster side, so that both sides take at least the wanted time.
  for (int round = 0; round < 16; ++round) {
    const double faster = std::min(repeat(team, ours, calls), repeat(team, raw, calls));
    const auto fitting = static_cast<int64_t>(wanted_us / std::max(faster, 0.01));
    if (round >= 4 && std::min(fitting, most_calls) < 2 * calls) break;
    calls = std::clamp(fitting, int64_t{1}, std::min(calls * 8, most_calls));
  }
  ours.stalls = raw.stalls = 0;
  const double begin = now_us();
  for (int pair = 0; pair < flags.whole("pairs"); ++pair) {
    Side& first = pair % 2 == 0 ? ours : raw;
    Side& second = pair % 2 == 0 ? raw : ours;
    first.times.push_back(repeat(team, first, calls));
    second.times.push_back(repeat(team, second, calls));
    if (team.max(now_us() - begin) > flags.number("cell-ms") * 1000) break;
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.times.size(); ++i) ratios.push_back(raw.times[i] / ours.times[i]);
  std::sort(ratios.begin(), ratios.end());
  const auto [least, most] = std::minmax_element(ours.times.begin(), ours.times.end());
  Row row;
  row.program = "tutti";
  row.ranks = team.size();
  row.timing = {median(ours.times), *least, *most, static_cast<int>(ratios.size()), calls};
  row.numbers["raw_us"] = median(raw.times);
  row.numbers["ratio"] = median(ratios);
  // The 95 % bound of the median, from a sign test.
  const auto n = static_cast<double>(ratios.size());
  const auto low = static_cast<size_t>(std::max(0.0, (n - 1.96 * std::sqrt(n)) / 2));
  row.numbers["ratio_low"] = ratios[low];
  row.numbers["ratio_high"] = ratios[ratios.size() - 1 - low];
  row.numbers["stalls"] = static_cast<double>(team.sum(ours.stalls));
  row.numbers["raw_stalls"] = static_cast<double>(team.sum(raw.stalls));
  return row;
}

/// Makes a communicator of the team's ranks over one backend. For TCP, `interface` ("": any) and
/// `congestion` ("": Tutti's choice) select the interface and the congestion control.
inline std::unique_ptr<Communicator> make_communicator(const ForkTeam& team,
                                                       const std::string& folder,
                                                       const std::string& backend,
                                                       const std::string& interface = "",
                                                       const std::string& congestion = "") {
  Options options;
  options.rank = options.local_rank = team.rank();
  options.size = options.local_size = team.size();
  options.launcher = "explicit";
  options.store = "file://" + folder;
  options.backend = backend;
  options.network_interface = interface;
  options.tcp_congestion = congestion;
  return Communicator::create(std::move(options));
}

}  // namespace tutti::benchmarks
