#include "tutti/collectives/allreduce.h"

#include <algorithm>
#include <bit>

#include "tutti/collectives/schedule_builder.h"

namespace tutti {

Schedule plan_ring_allreduce(const Problem& p) {
  ScheduleBuilder build(p);
  const int n = p.size, right = (p.rank + 1) % n, left = (p.rank + n - 1) % n;
  const Partition chunks(p.counts[0], n);
  const auto chunk = [&](int index) { return chunks[((index % n) + n) % n]; };
  build.bring({0, p.counts[0]}, 0);
  if (n == 1) return build.take();
  build.need_scratch(chunks[0].count);
  for (int k = 0; k < n - 1; ++k) {
    const auto incoming = chunk(p.rank - k - 1);
    build.send(right, Slot::output, chunk(p.rank - k));
    build.recv(left, Slot::scratch, {0, incoming.count});
    build.reduce(incoming, 0, true);
    build.next_round();
  }
  for (int k = 0; k < n - 1; ++k) {
    build.send(right, Slot::output, chunk(p.rank + 1 - k));
    build.recv(left, Slot::output, chunk(p.rank - k));
    build.next_round();
  }
  return build.take();
}

namespace {

// The ranks beyond a power of two fold their data into a neighbour first and get the result last.
// `exchange` writes the rounds of the 2^k that are left, whose places are 0 to 2^k - 1.
template <class Exchange>
Schedule fold_to_power_of_two(const Problem& p, int64_t scratch, Exchange exchange) {
  ScheduleBuilder build(p);
  const Range all{0, p.counts[0]};
  build.bring(all, 0);
  if (p.size == 1) return build.take();
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(p.size)));
  const int extra = p.size - power;
  const bool folded = p.rank < 2 * extra;
  if (folded && p.rank % 2 == 0) {
    build.send(p.rank + 1, Slot::output, all);
    build.next_round();
    for (int rounds = exchange(nullptr, 0, power, extra); rounds > 0; --rounds) build.next_round();
    build.recv(p.rank + 1, Slot::output, all);
    return build.take();
  }
  build.need_scratch(std::max(scratch, folded ? all.count : 0));
  if (folded) {
    build.recv(p.rank - 1, Slot::scratch, all);
    build.reduce(all, 0, true);
  }
  build.next_round();
  const int place = folded ? p.rank / 2 : p.rank - extra;
  exchange(&build, place, power, extra);
  if (folded) build.send(p.rank - 1, Slot::output, all);
  return build.take();
}

int rank_of_place(int place, int extra) { return place < extra ? 2 * place + 1 : place + extra; }

}  // namespace

Schedule plan_recursive_doubling_allreduce(const Problem& p) {
  const Range all{0, p.counts[0]};
  return fold_to_power_of_two(p, all.count,
                              [&](ScheduleBuilder* build, int place, int power, int extra) {
                                int rounds = 0;
                                for (int distance = 1; distance < power; distance *= 2, ++rounds) {
                                  if (build == nullptr) continue;
                                  const int peer = place ^ distance;
                                  build->send(rank_of_place(peer, extra), Slot::output, all);
                                  build->recv(rank_of_place(peer, extra), Slot::scratch, all);
                                  build->reduce(all, 0, peer < place);
                                  build->next_round();
                                }
                                return rounds;
                              });
}

Schedule plan_halving_doubling_allreduce(const Problem& p) {
  return fold_to_power_of_two(
      p, p.counts[0], [&](ScheduleBuilder* build, int place, int power, int extra) {
        const Partition chunks(p.counts[0], power);
        int rounds = 0, first = 0, last = power;
        for (int distance = power / 2; distance > 0; distance /= 2, ++rounds) {
          if (build == nullptr) continue;
          const int peer = place ^ distance, middle = (first + last) / 2;
          const bool low = (place & distance) == 0;
          const auto keep = low ? chunks.range(first, middle) : chunks.range(middle, last);
          const auto give = low ? chunks.range(middle, last) : chunks.range(first, middle);
          build->send(rank_of_place(peer, extra), Slot::output, give);
          build->recv(rank_of_place(peer, extra), Slot::scratch, {0, keep.count});
          build->reduce(keep, 0, !low);
          build->next_round();
          (low ? last : first) = middle;
        }
        for (int distance = 1; distance < power; distance *= 2, ++rounds) {
          if (build == nullptr) continue;
          const int peer = place ^ distance, width = last - first;
          const bool low = (place & distance) == 0;
          const int other = low ? last : first - width;
          build->send(rank_of_place(peer, extra), Slot::output, chunks.range(first, last));
          build->recv(rank_of_place(peer, extra), Slot::output, chunks.range(other, other + width));
          build->next_round();
          (low ? last : first) += low ? width : -width;
        }
        return rounds;
      });
}

Schedule plan_one_shot_allreduce(const Problem& p) {
  ScheduleBuilder build(p);
  const Range all{0, p.counts[0]};
  build.need_scratch(all.count * (p.size - 1));
  for (int peer = 0; peer < p.size; ++peer) {
    if (peer == p.rank) continue;
    const int64_t slot = peer < p.rank ? peer : peer - 1;
    build.send(peer, Slot::input, all);
    build.recv(peer, Slot::scratch, {slot * all.count, all.count});
  }
  build.reduce_ranks(all, 0);
  return build.take();
}

Schedule plan_two_shot_allreduce(const Problem& p) {
  ScheduleBuilder build(p);
  const Partition chunks(p.counts[0], p.size);
  const Range own = chunks[p.rank];
  build.need_scratch(own.count * (p.size - 1));
  for (int peer = 0; peer < p.size; ++peer) {
    if (peer == p.rank) continue;
    const int64_t slot = peer < p.rank ? peer : peer - 1;
    build.send(peer, Slot::input, chunks[peer]);
    build.recv(peer, Slot::scratch, {slot * own.count, own.count});
  }
  build.reduce_ranks(own, own.begin);
  build.next_round();
  for (int peer = 0; peer < p.size; ++peer) {
    if (peer == p.rank) continue;
    build.send(peer, Slot::output, own);
    build.recv(peer, Slot::output, chunks[peer]);
  }
  return build.take();
}

}  // namespace tutti
