#include "tutti/collectives/others.h"

#include <bit>

#include "tutti/collectives/schedule_builder.h"

namespace tutti {

Schedule plan_direct_allgather(const Problem& p) {
  ScheduleBuilder build(p);
  const Partition parts(p.counts);
  const Range own = parts[p.rank];
  build.copy(Slot::input, {0, own.count}, Slot::output, own.begin);
  for (int peer = 0; peer < p.size; ++peer) {
    if (peer == p.rank) continue;
    build.send(peer, Slot::input, {0, own.count});
    build.recv(peer, Slot::output, parts[peer]);
  }
  return build.take();
}

Schedule plan_direct_reduce_scatter(const Problem& p) {
  ScheduleBuilder build(p);
  const Partition parts(p.counts);
  const Range own = parts[p.rank];
  build.need_scratch(own.count * (p.size - 1));
  for (int peer = 0; peer < p.size; ++peer) {
    if (peer == p.rank) continue;
    const int64_t slot = peer < p.rank ? peer : peer - 1;
    build.send(peer, Slot::input, parts[peer]);
    build.recv(peer, Slot::scratch, {slot * own.count, own.count});
  }
  build.reduce_ranks(own, 0);
  return build.take();
}

Schedule plan_direct_gather(const Problem& p) {
  ScheduleBuilder build(p);
  const Partition parts(p.counts);
  const Range own = parts[p.rank];
  if (p.rank != p.root) {
    build.send(p.root, Slot::input, {0, own.count});
    return build.take();
  }
  build.copy(Slot::input, {0, own.count}, Slot::output, own.begin);
  for (int peer = 0; peer < p.size; ++peer)
    if (peer != p.rank) build.recv(peer, Slot::output, parts[peer]);
  return build.take();
}

Schedule plan_direct_scatter(const Problem& p) {
  ScheduleBuilder build(p);
  const Partition parts(p.counts);
  const Range own = parts[p.rank];
  if (p.rank != p.root) {
    build.recv(p.root, Slot::output, {0, own.count});
    return build.take();
  }
  build.copy(Slot::input, own, Slot::output, 0);
  for (int peer = 0; peer < p.size; ++peer)
    if (peer != p.rank) build.send(peer, Slot::input, parts[peer]);
  return build.take();
}

Schedule plan_direct_reduce(const Problem& p) {
  ScheduleBuilder build(p);
  const Range all{0, p.counts[0]};
  if (p.rank != p.root) {
    build.send(p.root, Slot::input, all);
    auto schedule = build.take();
    schedule.scales_at_owner = true;
    return schedule;
  }
  build.need_scratch(all.count * (p.size - 1));
  for (int peer = 0; peer < p.size; ++peer) {
    if (peer == p.rank) continue;
    const int64_t slot = peer < p.rank ? peer : peer - 1;
    build.recv(peer, Slot::scratch, {slot * all.count, all.count});
  }
  build.reduce_ranks(all, 0);
  return build.take();
}

Schedule plan_binomial_broadcast(const Problem& p) {
  ScheduleBuilder build(p);
  const Range all{0, p.counts[0]};
  const int place = (p.rank - p.root + p.size) % p.size;
  const auto rank_of = [&](int other) { return (other + p.root) % p.size; };
  if (place == 0 && !p.in_place) build.copy(Slot::input, all, Slot::output, 0);
  for (int distance = 1; distance < p.size; distance *= 2) {
    build.next_round();
    if (place < distance && place + distance < p.size)
      build.send(rank_of(place + distance), Slot::output, all);
    if (place >= distance && place < 2 * distance)
      build.recv(rank_of(place - distance), Slot::output, all);
  }
  return build.take();
}

Schedule plan_binomial_reduce(const Problem& p) {
  ScheduleBuilder build(p);
  const Range all{0, p.counts[0]};
  const int place = (p.rank - p.root + p.size) % p.size;
  const auto rank_of = [&](int other) { return (other + p.root) % p.size; };
  // Only the root has an output; the others add up in scratch, behind the place of arrivals.
  const bool is_root = place == 0;
  const Slot sum = is_root ? Slot::output : Slot::scratch;
  const Range sum_range{is_root ? 0 : all.count, all.count};
  build.need_scratch(2 * all.count);
  if (!is_root || !p.in_place) build.copy(Slot::input, all, sum, sum_range.begin);
  auto schedule = build.take();
  int round = 0;
  for (int distance = 1; distance < p.size; distance *= 2) {
    ++round;
    if (place % (2 * distance) == distance) {
      schedule.steps.push_back(
          {round, Action::send, rank_of(place - distance), sum, sum, sum_range, sum_range});
      break;
    }
    if (place + distance < p.size) {
      schedule.steps.push_back(
          {round, Action::recv, rank_of(place + distance), Slot::scratch, Slot::scratch, all, all});
      schedule.steps.push_back({round, Action::reduce, -1, Slot::scratch, sum, all, sum_range});
    }
  }
  return schedule;
}

Schedule plan_pairwise_alltoall(const Problem& p) {
  ScheduleBuilder build(p);
  const Partition to(p.counts), from(p.recv_counts);
  build.copy(Slot::input, to[p.rank], Slot::output, from[p.rank].begin);
  for (int k = 1; k < p.size; ++k) {
    build.next_round();
    const int target = (p.rank + k) % p.size, source = (p.rank + p.size - k) % p.size;
    build.send(target, Slot::input, to[target]);
    build.recv(source, Slot::output, from[source]);
  }
  return build.take();
}

Schedule plan_send(const Problem& p) {
  ScheduleBuilder build(p);
  build.send(p.root, Slot::input, {0, p.counts[0]});
  return build.take();
}

Schedule plan_recv(const Problem& p) {
  ScheduleBuilder build(p);
  build.recv(p.root, Slot::output, {0, p.counts[0]});
  return build.take();
}

Schedule plan_dissemination_barrier(const Problem& p) {
  ScheduleBuilder build(p);
  for (int distance = 1; distance < p.size; distance *= 2) {
    build.send((p.rank + distance) % p.size, Slot::input, {});
    build.recv((p.rank + p.size - distance) % p.size, Slot::input, {});
    build.next_round();
  }
  return build.take();
}

}  // namespace tutti
