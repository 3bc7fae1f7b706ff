"""Messages between ranks: which receive gets which message. A receive from any rank must leave
nothing behind for which TUTTI_OPERATION_TIMEOUT could end a healthy group. Needs three ranks or
more."""

import datetime
import os
import time

import ranks
import torch
import torch.distributed as dist
from ranks import equal, raises

import tutti
from tutti.torch._group import group_of

LIMIT = 3.0  # seconds
os.environ["TUTTI_OPERATION_TIMEOUT"] = str(LIMIT)


def value(number):
    return torch.full((4,), float(number))


def nothing_is_left_behind(rank, size):
    """Only one of two possible senders sends. Then all ranks are idle for longer than an operation
    may take."""
    if rank == 0:
        got = value(-1)
        dist.recv(got)
        equal(got, value(1), "recv from any rank")
    elif rank == 1:
        dist.send(value(1), 0)
    time.sleep(1.5 * LIMIT)
    dist.barrier()


def first_come_first_served(rank, size):
    """A receive from any rank and a receive from rank 1 get rank 1's messages in the order of the
    calls."""
    for any_is_first in (True, False):
        if rank == 0:
            first, second = value(-1), value(-1)
            works = [
                dist.irecv(first, None if any_is_first else 1),
                dist.irecv(second, 1 if any_is_first else None),
            ]
            for work in reversed(works):
                work.wait()
            equal(first, value(1), "the first receive")
            equal(second, value(2), "the second receive")
        elif rank == 1:
            dist.send(value(1), 0)
            dist.send(value(2), 0)
        dist.barrier()


def many_on_their_way(rank, size):
    """All receives begin before the first one ends; every third receive is from any rank."""
    count = 60
    if rank == 0:
        got = [value(-1) for _ in range(count)]
        works = [dist.irecv(each, None if i % 3 == 0 else 1) for i, each in enumerate(got)]
        for work in works:
            work.wait()
        for i, each in enumerate(got):
            equal(each, value(i), f"message {i}")
    elif rank == 1:
        for work in [dist.isend(value(i), 0) for i in range(count)]:
            work.wait()
    dist.barrier()


def each_sender_in_its_order(rank, size):
    count = 20
    if rank == 0:
        next_of = [0] * size
        for _ in range(count * (size - 1)):
            got = torch.empty(2)
            dist.recv(got, tag=5)
            sender, number = int(got[0]), int(got[1])
            equal(number, next_of[sender], f"the next message of rank {sender}")
            next_of[sender] += 1
        equal(next_of[1:], [count] * (size - 1), "messages of each rank")
    else:
        sent = [torch.tensor([float(rank), float(i)]) for i in range(count)]
        for work in [dist.isend(each, 0, tag=5) for each in sent]:
            work.wait()
    dist.barrier()


def other_shapes_behind_each_other(rank, size):
    """A receive from any rank does not limit the shape or type of the next receives."""
    if rank == 0:
        large, small, odd = torch.empty(1000), torch.empty(3, dtype=torch.int64), torch.empty(7, 2)
        works = [dist.irecv(large), dist.irecv(small, 1), dist.irecv(odd.t())]
        for work in works:
            work.wait()
        equal(large, torch.arange(1000.0), "the first")
        equal(small, torch.tensor([1, 2, 3]), "the second")
        equal(odd.t(), torch.arange(14.0).view(2, 7), "the third")
    elif rank == 1:
        dist.send(torch.arange(1000.0), 0)
        dist.send(torch.tensor([1, 2, 3]), 0)
        dist.send(torch.arange(14.0).view(2, 7), 0)
    dist.barrier()


def tags_and_peers_by_the_thousand(rank, size):
    """The group's bookkeeping for each tag and peer must not grow without limit."""
    for tag in range(300):
        if rank == 0:
            dist.send(value(tag), 1, tag=tag)
        elif rank == 1:
            got = value(-1)
            dist.recv(got, 0, tag=tag)
            equal(got, value(tag), "tag")
    group = group_of()
    lines = len(group._sends) + len(group._receives)
    if lines > 200:
        raise AssertionError(f"rank {rank}: {lines} lines are kept")
    dist.barrier()


def futures_of_what_waits_its_turn(rank, size):
    if rank == 0:
        group = group_of()
        got = [value(-1), value(-1)]
        works = [group.recv([each], 1, 0) for each in got]
        future = works[1].get_future()
        equal(works[1].is_completed(), False, "is_completed() of one behind another")
        raises(
            tutti.TimedOutError,
            f'"group {group._group}/to 0/tag 0" was not over within 0.05 s, this wait\'s timeout',
            lambda: works[1].wait(datetime.timedelta(seconds=0.05)),
        )
        dist.send(value(0), 1)
        equal(future.wait()[0], value(2), "the future")
        equal(works[1].is_completed(), True, "is_completed()")
        works[0].wait()
        equal(got[0], value(1), "the first")
    elif rank == 1:
        dist.recv(value(-1), 0)
        dist.send(value(1), 0)
        dist.send(value(2), 0)
    dist.barrier()


def a_group_that_closes_ends_all(rank, size):
    """The end of the group ends receives that have begun and receives that have not."""
    group = dist.new_group(list(range(size)))
    if rank == 0:
        ours = group_of(group)
        works = [ours.recv([value(-1)], 1, 0) for _ in range(3)]
        future = works[2].get_future()
        ours.close()
        for work in works:
            raises(tutti.ClosedError, "", work.wait)
        raises(RuntimeError, "", future.wait, lines=0)
    dist.barrier()


if __name__ == "__main__":
    ranks.run(
        nothing_is_left_behind,
        first_come_first_served,
        many_on_their_way,
        each_sender_in_its_order,
        other_shapes_behind_each_other,
        tags_and_peers_by_the_thousand,
        futures_of_what_waits_its_turn,
        a_group_that_closes_ends_all,
    )
