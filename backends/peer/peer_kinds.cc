#include "tutti/backends/peer/peer_kinds.h"

#include <algorithm>
#include <numeric>

namespace tutti {

namespace {

// A smaller share is not worth a kernel launch of its own.
constexpr int64_t kLeastShareBytes = 64 << 10;
constexpr int64_t kShareElements = 64;

int64_t sum_before(std::span<const int64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}
Problem problem_of(const Collective& what, int rank) {
  Problem problem;
  problem.kind = what.kind;
  problem.rank = rank;
  problem.root = what.root;
  problem.counts = what.send_counts;
  problem.recv_counts = what.recv_counts;
  return problem;
}
int64_t at(std::span<const int64_t> counts, int rank) { return counts[static_cast<size_t>(rank)]; }

}  // namespace

bool reads_from(const Collective& collective, int own, int peer) {
  const auto& is = traits(collective.kind);
  if (is.output == Content::nothing) return false;
  if (is.from_root || is.is_pair) return collective.root == peer;
  return !is.to_root || collective.root == own;
}

bool is_read_by(const Collective& collective, int own, int peer) {
  const auto& is = traits(collective.kind);
  if (is.input == Content::nothing) return false;
  if (is.to_root || is.is_pair) return collective.root == peer;
  return !is.from_root || collective.root == own;
}

bool listens_to(const Collective& collective, int own, int peer) {
  return reduces(collective.kind) || reads_from(collective, own, peer);
}

bool speaks_to(const Collective& collective, int own, int peer) {
  return reduces(collective.kind) || is_read_by(collective, own, peer);
}

int64_t input_count(const Collective& what, int own) { return input_count(problem_of(what, own)); }

int64_t output_count(const Collective& what, int own) {
  return output_count(problem_of(what, own));
}

int64_t input_offset(const Collective& what, int, int peer) {
  return exchanges_parts(what.kind) ? sum_before(what.send_counts, peer) : 0;
}

Range share_of(const Collective& what, int own, int size) {
  const int64_t count = what.send_counts[0];
  const int64_t least = kLeastShareBytes / size_of(what.dtype);
  int64_t share = std::max((count + size - 1) / size, least);
  share = (share + kShareElements - 1) / kShareElements * kShareElements;
  const int64_t begin = std::min(count, own * share);
  return {begin, std::min(share, count - begin)};
}

std::vector<PeerCopy> copies_of(const Collective& what, int own, int size) {
  std::vector<PeerCopy> copies;
  const auto add = [&](int peer, int64_t from, int64_t to, int64_t count) {
    if (count > 0) copies.push_back({peer, from, to, count});
  };
  const auto& is = traits(what.kind);
  if (is.reduces || (is.to_root && what.root != own)) return copies;
  switch (is.output) {
    case Content::nothing:
      break;
    case Content::whole:
      add(what.root, 0, 0, what.send_counts[0]);
      break;
    case Content::part:
      add(what.root, sum_before(what.send_counts, own), 0, at(what.send_counts, own));
      break;
    case Content::parts:
    case Content::exchanged: {
      const auto counts = exchanges_parts(what.kind) ? what.recv_counts : what.send_counts;
      for (int peer = 0; peer < size; ++peer)
        add(peer, 0, sum_before(counts, peer), at(counts, peer));
      break;
    }
  }
  return copies;
}

}  // namespace tutti
