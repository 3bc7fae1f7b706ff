#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti::benchmarks {

/// Ranks that are processes of this machine, children of one parent, with a page in common. The
/// page serves the measuring alone (barriers, the largest time), never the data.
class ForkTeam {
 public:
  static constexpr int kMostRanks = 64;
  static constexpr size_t kPieceBytes = 256;

  /// Forks `size` ranks, runs `body` in each and waits for them; the first one's failure ends the
  /// others. With `bind`, every rank is bound to a core, its own as long as there are enough. With
  /// `namespaces`, rank r moves to the network namespace namespaces[r] (as in /run/netns) first.
  /// Returns 0 or the failed rank's exit code; the ranks end themselves after `deadline_s`.
  static int run(int size, const std::vector<std::string>& namespaces, unsigned deadline_s,
                 bool bind, const std::function<void(ForkTeam&)>& body);

  int rank() const { return rank_; }
  int size() const { return size_; }
  void barrier();
  double max(double value);
  int64_t sum(int64_t value);
  /// Everybody's piece of at most kPieceBytes, by rank.
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
