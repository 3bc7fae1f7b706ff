#include "tutti/collectives/thresholds.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

namespace tutti {

namespace {

// Time = fixed + per_byte * bytes.
struct Cost {
  double fixed = 0;
  double per_byte = 0;
};

// Cost of reducing one byte, apart from moving it, in microseconds. The value makes the model agree
// with a measurement: between two ranks on loopback, whose latency is about 10 us, one round is
// best below 32 KiB.
constexpr double kGamma = 1.0 / 1600;

// Smaller or larger thresholds are not credible, whatever a probe measured.
constexpr int64_t kLeast = 512, kMost = 64 << 20;

// Two levels must save at least this factor, because a host rarely has its link to itself.
constexpr double kClearly = 1.1;

struct Layout {
  explicit Layout(std::span<const int> hosts) : ranks(static_cast<int>(hosts.size())) {
    if (hosts.empty()) return;
    count = 1 + *std::max_element(hosts.begin(), hosts.end());
    std::vector<int> members(static_cast<size_t>(count)), leaving(members);
    for (size_t i = 0; i < hosts.size(); ++i) {
      ++members[static_cast<size_t>(hosts[i])];
      if (hosts[i] != hosts[(i + 1) % hosts.size()]) ++leaving[static_cast<size_t>(hosts[i])];
    }
    most_members = *std::max_element(members.begin(), members.end());
    ring_links = *std::max_element(leaving.begin(), leaving.end());
  }
  int ranks = 0;
  int count = 1;         // number of hosts
  int most_members = 1;  // ranks on the largest host
  int ring_links = 0;    // in a ring of all ranks, the most links that leave one host
};

// rounds_of() returns the number of rounds of doubling among `count` ranks. core_of() returns the
// largest power of two that does not exceed `count`.
double rounds_of(int count) { return static_cast<double>(std::bit_width(unsigned(count - 1))); }
int core_of(int count) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(count))); }

class Model {
 public:
  Model(const NetworkFigures& figures, const Layout& layout)
      : alpha_(figures.between.latency_micros),
        beta_(1 / figures.between.bytes_per_micro),
        layout_(layout),
        p_(layout.ranks),
        m_(layout.most_members),
        h_(layout.count) {}

  // Every rank sends everything to every other rank.
  Cost one_shot() const { return {alpha_, m_ * (p_ - m_) * beta_ + (p_ - 1) * kGamma}; }
  Cost two_shot() const {
    return {2 * alpha_, 2 * m_ * (p_ - m_) / p_ * beta_ + (p_ - 1) / p_ * kGamma};
  }
  // Ranks beyond a power of two send their data to others first, and receive the result at the end.
  Cost recursive_doubling() const {
    const double rounds = std::bit_width(static_cast<unsigned>(core_of(layout_.ranks))) - 1;
    return {(rounds + folds()) * alpha_,
            (rounds_of(layout_.count) * m_ + folds()) * beta_ + (rounds + folds() / 2) * kGamma};
  }
  // Assumes the worst numbering of the ranks: the partners of the rounds with the most data are on
  // other hosts.
  Cost halving_doubling() const {
    const double rounds = std::bit_width(static_cast<unsigned>(core_of(layout_.ranks))) - 1;
    return {(2 * rounds + folds()) * alpha_,
            (2 * m_ * (h_ - 1) / h_ + folds()) * beta_ + ((p_ - 1) / p_ + folds() / 2) * kGamma};
  }
  Cost ring() const {
    return {2 * (p_ - 1) * alpha_,
            2 * layout_.ring_links * (p_ - 1) / p_ * beta_ + (p_ - 1) / p_ * kGamma};
  }
  // One round within the hosts, then a ring between the hosts for each rank of a host, then another
  // round within the hosts.
  Cost two_levels(const LinkFigures& within) const {
    return {2 * within.latency_micros + 2 * (h_ - 1) * alpha_,
            2 * (m_ - 1) / m_ / within.bytes_per_micro + 2 * (h_ - 1) / h_ * beta_ +
                (p_ - 1) / p_ * kGamma};
  }

 private:
  double folds() const { return core_of(layout_.ranks) == layout_.ranks ? 0 : 2; }

  const double alpha_, beta_;
  const Layout& layout_;
  const double p_, m_, h_;
};

// Returns the size up to which `few` (fewer rounds) is cheaper than `many`, or nothing if `few` is
// always cheaper.
std::optional<double> limit(const Cost& few, const Cost& many) {
  if (few.per_byte <= many.per_byte) return {};
  return std::max(0.0, (many.fixed - few.fixed) / (few.per_byte - many.per_byte));
}

int64_t bounded(double bytes) {
  return static_cast<int64_t>(
      std::clamp(bytes, static_cast<double>(kLeast), static_cast<double>(kMost)));
}

// Returns the size from which `levels` is cheaper than all `others`.
int64_t from_which(const Cost& levels, std::initializer_list<Cost> others) {
  double from = 0;
  for (const auto& other : others) {
    if (levels.per_byte * kClearly >= other.per_byte) return Thresholds::kNever;
    from = std::max(from,
                    (levels.fixed - other.fixed) / (other.per_byte - levels.per_byte * kClearly));
  }
  return bounded(from);
}

}  // namespace

bool are_alike(const NetworkFigures& figures) {
  return figures.within &&
         figures.between.bytes_per_micro * 2 * kClearly > figures.within->bytes_per_micro;
}

Thresholds derive_thresholds(const NetworkFigures& figures, std::span<const int> hosts,
                             TwoLevels two_levels) {
  Thresholds thresholds;
  const Layout layout(hosts);
  if (layout.count < 2) return thresholds;
  const Model model(figures, layout);
  // The algorithm that the chooser's table uses for larger sizes.
  const Cost large = layout.ranks <= 3 ? model.two_shot() : model.halving_doubling();
  const auto until_large = [&](const Cost& few) {
    const double bytes = limit(few, large).value_or(kMost);
    return layout.ranks <= 3 ? bytes : std::min(bytes, limit(few, model.ring()).value_or(kMost));
  };
  thresholds.recursive_doubling_below = bounded(until_large(model.recursive_doubling()));
  double one_shot = until_large(model.one_shot());
  if (layout.ranks > 2)
    one_shot =
        std::min(one_shot, limit(model.one_shot(), model.recursive_doubling()).value_or(kMost));
  thresholds.one_shot_below = bounded(one_shot);
  // If a ring does not send fewer bytes, the model has no threshold, and the table's applies.
  if (const auto halving = limit(model.halving_doubling(), model.ring()))
    thresholds.halving_doubling_below = bounded(*halving);

  if (!figures.within || layout.ranks == layout.count) return thresholds;
  if (are_alike(figures))
    thresholds.two_levels_from = Thresholds::kNever;
  else if (two_levels == TwoLevels::where_they_pay)
    thresholds.two_levels_from =
        from_which(model.two_levels(*figures.within),
                   {model.one_shot(), model.recursive_doubling(), large, model.ring()});
  return thresholds;
}

std::string to_text(const Thresholds& thresholds) {
  const auto part = [](std::string_view name, std::optional<int64_t> bytes) {
    if (!bytes) return fmt::format("{} by the table", name);
    if (*bytes == Thresholds::kNever) return fmt::format("{} nothing", name);
    return fmt::format("{} {} bytes", name, *bytes);
  };
  return fmt::format("{}, {}, {}, {}", part("one_shot below", thresholds.one_shot_below),
                     part("recursive_doubling below", thresholds.recursive_doubling_below),
                     part("halving_doubling below", thresholds.halving_doubling_below),
                     part("two levels from", thresholds.two_levels_from));
}

std::string to_text(const NetworkFigures& figures) {
  const auto one = [](const LinkFigures& link) {
    return fmt::format("{:.1f} us and {:.0f} MB/s", link.latency_micros, link.bytes_per_micro);
  };
  return fmt::format("{} between hosts{}", one(figures.between),
                     figures.within ? ", " + one(*figures.within) + " within one" : "");
}

}  // namespace tutti
