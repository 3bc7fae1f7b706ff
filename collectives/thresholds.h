#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

namespace tutti {

/// Measured properties of the link between two ranks: the alpha and (inverted) the beta of the cost
/// model.
struct LinkFigures {
  double latency_micros = 0;   // latency in one direction, for a small message
  double bytes_per_micro = 0;  // bandwidth for a large message
  bool operator==(const LinkFigures&) const = default;
};

struct NetworkFigures {
  LinkFigures between;                     // link between two hosts
  std::optional<LinkFigures> within = {};  // link between two ranks of one host, if a host has two
  bool operator==(const NetworkFigures&) const = default;
};

/// Sizes of the whole collective, in bytes, at which the Chooser switches algorithms. If a size has
/// no value, the Chooser's table applies.
struct Thresholds {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  std::optional<int64_t> one_shot_below = {};            // for allreduces
  std::optional<int64_t> recursive_doubling_below = {};  // for allreduces
  std::optional<int64_t> halving_doubling_below = {};    // for allreduces; a ring from this size on
  /// Size from which two levels are used if there are several hosts; kNever disables them.
  std::optional<int64_t> two_levels_from = {};
  bool operator==(const Thresholds&) const = default;
};

enum class TwoLevels : uint8_t {
  where_they_pay,
  unless_alike  // the user asked for two levels, so they are used unless are_alike()
};

/// Returns whether the links within and between hosts are too similar for two levels. Two levels
/// move most bytes once more within the hosts in order to halve the bytes on the link between
/// hosts. This pays only if that link is less than half as fast as those within the hosts. A margin
/// of 10 % is required.
bool are_alike(const NetworkFigures& figures);

/// Returns the thresholds for ranks on these hosts (host number of each rank), from the
/// alpha-beta-gamma costs of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
/// Communication Operations in MPICH", Int. J. High Performance Computing Applications 19(1), 2005,
/// sections 2 and 4. For p ranks and n bytes these are
///   recursive doubling   lg p (alpha + n beta + n gamma)
///   Rabenseifner's       2 lg p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma
///   ring                 2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma
/// except that n beta counts the bytes that leave the busiest host, because its ranks share the
/// link (for Rabenseifner's algorithm this is the maximum over all numberings of ranks). Every
/// threshold except two_levels_from grows with the latency. Pure function: equal on all ranks.
Thresholds derive_thresholds(const NetworkFigures& figures, std::span<const int> hosts,
                             TwoLevels two_levels);

/// Returns text for the log, such as "one_shot below 12288 bytes, ..., two levels from nothing".
std::string to_text(const Thresholds& thresholds);
std::string to_text(const NetworkFigures& figures);

}  // namespace tutti
