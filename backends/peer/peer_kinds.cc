#include "tutti/backends/peer/peer_kinds.h"

#include <algorithm>
#include <numeric>

namespace tutti {

namespace {

// A share of fewer bytes is not worth its own kernel launch.
constexpr int64_t kLeastShareBytes = 64 << 10;
constexpr int64_t kShareElements = 64;

int64_t sum_before(std::span<const int64_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}
int64_t sum(std::span<const int64_t> counts) {
  return sum_before(counts, static_cast<int>(counts.size()));
}
int64_t at(std::span<const int64_t> counts, int rank) { return counts[static_cast<size_t>(rank)]; }

}  // namespace

bool reads_from(const Collective& collective, int own, int peer) {
  switch (collective.kind) {
    case CollectiveKind::broadcast:
    case CollectiveKind::scatter:
    case CollectiveKind::recv:
      return collective.root == peer;
    case CollectiveKind::reduce:
    case CollectiveKind::gather:
      return collective.root == own;
    case CollectiveKind::send:
    case CollectiveKind::barrier:
      return false;
    case CollectiveKind::allreduce:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::allgather:
    case CollectiveKind::alltoall:
      break;
  }
  return true;
}

bool is_read_by(const Collective& collective, int own, int peer) {
  switch (collective.kind) {
    case CollectiveKind::broadcast:
    case CollectiveKind::scatter:
      return collective.root == own;
    case CollectiveKind::reduce:
    case CollectiveKind::gather:
    case CollectiveKind::send:
      return collective.root == peer;
    case CollectiveKind::recv:
    case CollectiveKind::barrier:
      return false;
    case CollectiveKind::allreduce:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::allgather:
    case CollectiveKind::alltoall:
      break;
  }
  return true;
}

bool listens_to(const Collective& collective, int own, int peer) {
  return reduces(collective.kind) || reads_from(collective, own, peer);
}

bool speaks_to(const Collective& collective, int own, int peer) {
  return reduces(collective.kind) || is_read_by(collective, own, peer);
}

int64_t input_count(const Collective& what, int own) {
  switch (what.kind) {
    case CollectiveKind::allreduce:
    case CollectiveKind::reduce:
    case CollectiveKind::send:
      return what.send_counts[0];
    case CollectiveKind::broadcast:
      return what.root == own ? what.send_counts[0] : 0;
    case CollectiveKind::allgather:
    case CollectiveKind::gather:
      return at(what.send_counts, own);
    case CollectiveKind::scatter:
      return what.root == own ? sum(what.send_counts) : 0;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::alltoall:
      return sum(what.send_counts);
    case CollectiveKind::recv:
    case CollectiveKind::barrier:
      break;
  }
  return 0;
}

int64_t output_count(const Collective& what, int own) {
  switch (what.kind) {
    case CollectiveKind::allreduce:
    case CollectiveKind::broadcast:
    case CollectiveKind::recv:
      return what.send_counts[0];
    case CollectiveKind::reduce:
      return what.root == own ? what.send_counts[0] : 0;
    case CollectiveKind::allgather:
      return sum(what.send_counts);
    case CollectiveKind::gather:
      return what.root == own ? sum(what.send_counts) : 0;
    case CollectiveKind::scatter:
    case CollectiveKind::reduce_scatter:
      return at(what.send_counts, own);
    case CollectiveKind::alltoall:
      return sum(what.recv_counts);
    case CollectiveKind::send:
    case CollectiveKind::barrier:
      break;
  }
  return 0;
}

int64_t input_offset(const Collective& what, int, int peer) {
  return what.kind == CollectiveKind::alltoall ? sum_before(what.send_counts, peer) : 0;
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
  switch (what.kind) {
    case CollectiveKind::broadcast:
    case CollectiveKind::recv:
      add(what.root, 0, 0, what.send_counts[0]);
      break;
    case CollectiveKind::scatter:
      add(what.root, sum_before(what.send_counts, own), 0, at(what.send_counts, own));
      break;
    case CollectiveKind::gather:
      if (what.root != own) break;
      [[fallthrough]];
    case CollectiveKind::allgather:
      for (int peer = 0; peer < size; ++peer)
        add(peer, 0, sum_before(what.send_counts, peer), at(what.send_counts, peer));
      break;
    case CollectiveKind::alltoall:
      for (int peer = 0; peer < size; ++peer)
        add(peer, 0, sum_before(what.recv_counts, peer), at(what.recv_counts, peer));
      break;
    default:
      break;
  }
  return copies;
}

}  // namespace tutti
