#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tutti {

/// Collects the timelines of all ranks, which arrive at rank 0 in parts when the communicator
/// closes. Pure.
class Gathering {
 public:
  Gathering(int rank, int size)
      : timelines_(static_cast<size_t>(size)),
        is_whole_(static_cast<size_t>(size), false),
        missing_(size - 1),
        rank_(rank) {}

  /// Adds a part of a rank's timeline. An empty part means that the timeline is complete.
  void on_part(int from, std::span<const std::byte> part) {
    auto& timeline = timelines_[static_cast<size_t>(from)];
    if (part.empty())
      on_end(from);
    else
      timeline.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  /// Called when no more parts can arrive from that rank.
  void on_end(int from) {
    if (from == rank_ || is_whole_[static_cast<size_t>(from)]) return;
    is_whole_[static_cast<size_t>(from)] = true;
    --missing_;
  }
  /// Sets the timeline that this rank recorded.
  void set_own(std::string timeline) {
    timelines_[static_cast<size_t>(rank_)] = std::move(timeline);
    has_own_ = true;
  }
  bool has_own() const { return has_own_; }
  bool is_whole() const { return missing_ == 0; }
  /// Returns the timeline of each rank. It is empty for a rank that sent none.
  const std::vector<std::string>& timelines() const { return timelines_; }

 private:
  std::vector<std::string> timelines_;
  std::vector<bool> is_whole_;
  int missing_;
  const int rank_;
  bool has_own_ = false;
};

}  // namespace tutti
