#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

namespace tutti {

/// What was measured of the way between two ranks: the alpha and, inverted, the beta of the cost
/// model.
struct LinkFigures {
  double latency_micros = 0;   // one way, of a small message
  double bytes_per_micro = 0;  // of a large one
  bool operator==(const LinkFigures&) const = default;
};

struct NetworkFigures {
  LinkFigures between;                     // two hosts
  std::optional<LinkFigures> within = {};  // two ranks of one host, where a host has two
  bool operator==(const NetworkFigures&) const = default;
};

/// Sizes, in bytes of the whole collective, at which the Chooser goes from one algorithm to the
/// next. What has no value is as in its table.
struct Thresholds {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  std::optional<int64_t> one_shot_below = {};            // allreduce
  std::optional<int64_t> recursive_doubling_below = {};  // allreduce
  std::optional<int64_t> halving_doubling_below = {};    // allreduce; from there on ring
  std::optional<int64_t> two_levels_from = {};  // several hosts; kNever: ranks are as if alone
  bool operator==(const Thresholds&) const = default;
};

enum class TwoLevels : uint8_t {
  where_they_pay,
  unless_alike  // where the user asked for two levels: given up only where they cannot pay
};

/// Whether the links within and between hosts are too much alike for two levels: those bring most
/// bytes through the hosts once more in order to spare the link between them half of them, which
/// pays where it is at most half as fast.
bool are_alike(const NetworkFigures& figures);

/// The thresholds for ranks on these hosts (host number of each rank), by the alpha-beta-gamma
/// costs of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
/// Operations in MPICH", Int. J. High Performance Computing Applications 19(1), 2005, sections 2
/// and 4: for p ranks and n bytes
///   recursive doubling   lg p (alpha + n beta + n gamma)
///   Rabenseifner's       2 lg p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma
///   ring                 2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma
/// except that n beta counts the bytes that leave the busiest host, because its ranks share the
/// link (Rabenseifner's: at most, whatever the ranks' numbers). Every threshold but two_levels_from
/// grows with the latency. Pure: equal on all ranks.
Thresholds derive_thresholds(const NetworkFigures& figures, std::span<const int> hosts,
                             TwoLevels two_levels);

/// "one_shot below 12288 bytes, ..., two levels never", for the log.
std::string to_text(const Thresholds& thresholds);
std::string to_text(const NetworkFigures& figures);

}  // namespace tutti
