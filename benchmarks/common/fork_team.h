#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti::benchmarks {

/// Ranks that are child processes of one parent on this machine and share one page. The page is
/// used only for the measurement (barriers, the largest time), never for the data.
class ForkTeam {
 public:
  static constexpr int kMostRanks = 64;
  static constexpr size_t kPieceBytes = 256;

  /// Forks `size` ranks, runs `body` in each and waits for them. The first rank that fails ends the
  /// others. If `bind`, each rank is bound to a core, which it has alone if there are enough cores.
  /// With `namespaces`, rank r first moves to the network namespace namespaces[r] of /run/netns.
  /// Returns 0 or the failed rank's exit code. The ranks end themselves after `deadline_s` seconds.
  static int run(int size, const std::vector<std::string>& namespaces, unsigned deadline_s,
                 bool bind, const std::function<void(ForkTeam&)>& body);

  int rank() const { return rank_; }
  int size() const { return size_; }
  void barrier();
  double max(double value);
  int64_t sum(int64_t value);
  /// Returns the piece of each rank, in rank order. A piece has at most kPieceBytes bytes.
  std::vector<std::string> exchange(const std::string& own);

 private:
  struct Page;
  ForkTeam(Page& page, int rank, int size) : page_(page), rank_(rank), size_(size) {}
  void wait_for_round(uint64_t round);

  Page& page_;
  int rank_, size_;
  uint64_t round_ = 0;
};

}  // namespace tutti::benchmarks
