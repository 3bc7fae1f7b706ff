"""Every collective of c10d, compared with a computation by torch alone."""

import functools
import operator
import time

import torch
import torch.distributed as dist

import tutti
import tutti.torch
from ranks import equal, raises, run

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
MOVED = INTEGERS + FLOATS + [torch.bool, torch.complex64]
# Torch 2.14 wraps the Work of a Python backend. Only wait() and get_future() reach the backend's
# Work. The wrapper does not report whether the work is done, nor which rank sent.
WORK_IS_OURS = issubclass(tutti.torch.Group, dist.ProcessGroup)
COUNTS = [0, 1, 7, 1000, 70_001]


def numbers(rank, count, dtype, seed=0):
    """Returns small whole numbers, whose sums and products are exact in any order."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    values = torch.randint(0, 3, (count,), generator=generator)
    return values.to(dtype)


def everyone(size, count, dtype, seed=0):
    return [numbers(rank, count, dtype, seed) for rank in range(size)]


def all_reduce(rank, size):
    ops = {
        dist.ReduceOp.SUM: operator.add,
        dist.ReduceOp.PRODUCT: operator.mul,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
    }
    bits = {
        dist.ReduceOp.BAND: operator.and_,
        dist.ReduceOp.BOR: operator.or_,
        dist.ReduceOp.BXOR: operator.xor,
    }
    for dtype in INTEGERS + FLOATS:
        chosen = dict(ops) if dtype in FLOATS else {**ops, **bits}
        for op, plain in chosen.items():
            for count in COUNTS if dtype == torch.float32 else [5, 333]:
                tensor = numbers(rank, count, dtype)
                dist.all_reduce(tensor, op)
                expected = functools.reduce(plain, everyone(size, count, dtype))
                equal(tensor, expected, f"all_reduce {op} {dtype} {count}")
    for dtype in FLOATS:
        tensor = numbers(rank, 100, dtype) * size
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        expected = functools.reduce(operator.add, everyone(size, 100, dtype))
        equal(tensor, expected, f"all_reduce AVG {dtype}")
    complexes = numbers(rank, 10, torch.complex64)
    dist.all_reduce(complexes)
    equal(complexes, sum(everyone(size, 10, torch.complex64)), "all_reduce complex")


def all_reduce_of_other_layouts(rank, size):
    plain = numbers(rank, 120, torch.float32).view(2, 3, 4, 5)
    tensor = plain.clone().contiguous(memory_format=torch.channels_last)
    dist.all_reduce(tensor)
    equal(tensor, sum(everyone(size, 120, torch.float32)).view(2, 3, 4, 5), "channels_last")
    # One rank has another memory layout.
    tensor = plain.clone()
    if rank == 0:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    dist.all_reduce(tensor)
    equal(tensor, sum(everyone(size, 120, torch.float32)).view(2, 3, 4, 5), "mixed layouts")
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    equal(scalar, torch.tensor(float(sum(range(size)))), "a scalar")


def all_reduce_sparse(rank, size):
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        indices = torch.tensor([[rank, rank + 1], [0, 1]])
        tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0]), (size + 1, 2))
        if rank == size - 1:
            tensor = torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.long), [], (size + 1, 2))
        expected = torch.zeros(size + 1, 2)
        for other in range(size - 1):
            expected[other, 0] += 1
            expected[other + 1, 1] += 2
        dist.all_reduce(tensor, op)
        expected = expected / size if op == dist.ReduceOp.AVG else expected
        equal(tensor.to_dense(), expected, f"all_reduce sparse {op}")


def all_reduce_coalesced(rank, size):
    counts = [3, 1, 500]
    tensors = [numbers(rank, count, torch.float32, count) for count in counts]
    dist.all_reduce_coalesced(tensors)
    for count, tensor in zip(counts, tensors):
        equal(tensor, sum(everyone(size, count, torch.float32, count)), "all_reduce_coalesced")


def broadcast(rank, size):
    for dtype in MOVED:
        for root in range(size):
            tensor = numbers(rank, 33, dtype)
            dist.broadcast(tensor, root)
            equal(tensor, numbers(root, 33, dtype), f"broadcast {dtype} from {root}")
    strided = torch.zeros(4, 6).t()
    strided.copy_(torch.arange(24.0).view(6, 4) * (rank + 1))
    dist.broadcast(strided, size - 1)
    equal(strided.contiguous(), torch.arange(24.0).view(6, 4) * size, "broadcast of a transposed one")


def reduce(rank, size):
    for root in range(size):
        tensor = numbers(rank, 65, torch.float32)
        dist.reduce(tensor, root)
        if rank == root:
            equal(tensor, sum(everyone(size, 65, torch.float32)), "reduce")


def all_gather(rank, size):
    for dtype in MOVED:
        for count in (0, 1, 77):
            outputs = [torch.empty(count, dtype=dtype) for _ in range(size)]
            dist.all_gather(outputs, numbers(rank, count, dtype))
            for got, expected in zip(outputs, everyone(size, count, dtype)):
                equal(got, expected, f"all_gather {dtype} {count}")
    flat = torch.empty(size * 6)  # outputs in one piece of memory are filled without a copy
    dist.all_gather(list(flat.view(size, 2, 3)), numbers(rank, 6, torch.float32).view(2, 3))
    equal(flat, torch.cat(everyone(size, 6, torch.float32)), "all_gather into views")


def all_gather_into_tensor(rank, size):
    call = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    output = torch.empty(size * 10, dtype=torch.bfloat16)
    call(output, numbers(rank, 10, torch.bfloat16))
    equal(output, torch.cat(everyone(size, 10, torch.bfloat16)), "all_gather_into_tensor")
    work = call(output, numbers(rank, 10, torch.bfloat16, 1), async_op=True)
    work.wait()
    equal(output, torch.cat(everyone(size, 10, torch.bfloat16, 1)), "the same, asynchronous")


def all_gather_coalesced(rank, size):
    outputs = [[torch.empty(3), torch.empty(5)] for _ in range(size)]
    inputs = [numbers(rank, 3, torch.float32), numbers(rank, 5, torch.float32)]
    dist.all_gather_coalesced(outputs, inputs)
    for other in range(size):
        equal(outputs[other][0], numbers(other, 3, torch.float32), "all_gather_coalesced")
        equal(outputs[other][1], numbers(other, 5, torch.float32), "all_gather_coalesced")


def gather_and_scatter(rank, size):
    for root in range(size):
        for dtype in (torch.float32, torch.bool, torch.complex64):
            own = numbers(rank, 9, dtype)
            outputs = [torch.empty(9, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(own, outputs, root)
            if rank == root:
                for got, expected in zip(outputs, everyone(size, 9, dtype)):
                    equal(got, expected, f"gather {dtype}")
            output = torch.empty(9, dtype=dtype)
            dist.scatter(output, everyone(size, 9, dtype, 5) if rank == root else None, root)
            equal(output, numbers(rank, 9, dtype, 5), f"scatter {dtype}")


def reduce_scatter(rank, size):
    own = [numbers(rank, 11, torch.float32, part) for part in range(size)]
    total = sum(everyone(size, 11, torch.float32, rank))
    output = torch.empty(11)
    dist.reduce_scatter(output, own)
    equal(output, total, "reduce_scatter")
    dist.reduce_scatter(output, own, dist.ReduceOp.MAX)
    parts = everyone(size, 11, torch.float32, rank)
    equal(output, functools.reduce(torch.maximum, parts), "reduce_scatter MAX")
    call = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    call(output, torch.cat(own))
    equal(output, total, "reduce_scatter_tensor")
    uneven = [torch.full((part + 1,), float(rank + part)) for part in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, uneven)
    expected = torch.full((rank + 1,), float(sum(other + rank for other in range(size))))
    equal(output, expected, "reduce_scatter of uneven parts")


def all_to_all(rank, size):
    for dtype in (torch.int32, torch.complex64):
        own = [numbers(rank, other + 1, dtype, other) for other in range(size)]
        outputs = [torch.empty(rank + 1, dtype=dtype) for _ in range(size)]
        dist.all_to_all(outputs, own)
        for other in range(size):
            equal(outputs[other], numbers(other, rank + 1, dtype, rank), f"all_to_all {dtype}")
    rows = torch.arange(size * 2 * 3.0).view(size * 2, 3) + 100 * rank
    output = torch.empty_like(rows)
    dist.all_to_all_single(output, rows)
    expected = [torch.arange(size * 2 * 3.0).view(size, 2, 3)[rank] + 100 * o for o in range(size)]
    equal(output, torch.cat(expected), "all_to_all_single")
    wide = torch.empty(size, 6)  # the same number of elements per rank, in rows of another length
    dist.all_to_all_single(wide, rows)
    equal(wide, torch.cat(expected).view(size, 6), "all_to_all_single of other rows")
    splits = [other + 1 for other in range(size)]  # rank r gets r + 1 rows from every rank
    rows = torch.full((sum(splits), 2), float(rank))
    output = torch.empty(size * (rank + 1), 2)
    dist.all_to_all_single(output, rows, [rank + 1] * size, splits)
    expected = torch.arange(float(size)).repeat_interleave(rank + 1).view(-1, 1).repeat(1, 2)
    equal(output, expected, "all_to_all_single with splits")


def messages(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    tensor = torch.empty(8)
    for tag in (0, 3):
        sent = dist.isend(numbers(rank, 8, torch.float32, tag), after, tag=tag)
        dist.recv(tensor, before, tag=tag)
        sent.wait()
        equal(tensor, numbers(before, 8, torch.float32, tag), f"send with tag {tag}")
    outgoing, incoming = [numbers(rank, 4, torch.int64, i) for i in range(3)], []
    batch = []
    for values in outgoing:
        incoming.append(torch.empty(4, dtype=torch.int64))
        batch.append(dist.P2POp(dist.isend, values, after))
        batch.append(dist.P2POp(dist.irecv, incoming[-1], before))
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    for index, got in enumerate(incoming):
        equal(got, numbers(before, 4, torch.int64, index), "batch_isend_irecv")


def messages_from_any_rank(rank, size):
    if not WORK_IS_OURS:
        return
    if rank != 0:
        for turn in range(3):
            dist.send(torch.tensor([float(rank), float(turn)]), 0, tag=9)
    else:
        turns = {other: 0.0 for other in range(1, size)}
        for _ in range(3 * (size - 1)):
            tensor = torch.empty(2)
            source = dist.recv(tensor, tag=9)
            equal(tensor, torch.tensor([float(source), turns[source]]), "recv from any rank")
            turns[source] += 1
    dist.barrier()
    if rank != 0:
        dist.send(torch.tensor([7.0, rank]), 0, tag=9)
    else:
        for other in range(size - 1, 0, -1):
            tensor = torch.empty(2)
            dist.recv(tensor, other, tag=9)
            equal(tensor, torch.tensor([7.0, other]), "recv from one after recv from any")
    dist.barrier()
    # A message that does not fit is lost; the next one is received.
    if rank == 1:
        raises(tutti.MismatchError, "", lambda: dist.send(torch.ones(5), 0, tag=9))
        dist.send(torch.full((3,), 2.0), 0, tag=9)
    elif rank == 0:
        tensor = torch.empty(3)
        raises(tutti.MismatchError, "", lambda: dist.recv(tensor, tag=9))
        equal(dist.recv(tensor, tag=9), 1, "the rank that sent")
        equal(tensor, torch.full((3,), 2.0), "recv from any rank after one that did not fit")


def objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    equal(gathered, [{"rank": r, "text": "x" * r} for r in range(size)], "all_gather_object")
    listed = ["a", (1, 2), None] if rank == 1 else [None] * 3
    dist.broadcast_object_list(listed, 1)
    equal(listed, ["a", (1, 2), None], "broadcast_object_list")
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(("of", rank), gathered)
    if rank == 0:
        equal(gathered, [("of", r) for r in range(size)], "gather_object")
    scattered = [None]
    dist.scatter_object_list(scattered, [{"to": r} for r in range(size)] if rank == 0 else None)
    equal(scattered, [{"to": rank}], "scatter_object_list")


def barriers(rank, size):
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    if WORK_IS_OURS:
        equal(work.is_completed(), True, "a barrier that was waited for")
    tutti_group().monitored_barrier()


def tutti_group(group=None):
    return tutti.torch.group_of(group)


def futures(rank, size):
    """The Future of a short operation may be done when it is made, if no rank is late. Otherwise
    another thread completes it."""
    for count, late in ((4, False), (4, True), (1 << 19, False)):
        if late and rank == size - 1:
            time.sleep(0.1)
        tensor = torch.ones(count) * rank
        work = dist.all_reduce(tensor, async_op=True)
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        equal(doubled.wait(), torch.full((count,), size * (size - 1.0)), "a future")

        # A callback of a Future may wait for further operations.
        def again(future):
            return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()

        if late and rank == size - 1:
            time.sleep(0.1)
        tensor = torch.ones(count)
        chained = dist.all_reduce(tensor, async_op=True).get_future().then(again)
        equal(chained.wait()[0], torch.full((count,), float(size * size)), "a future of a future")


def groups(rank, size):
    evens = dist.new_group(list(range(0, size, 2)))
    odds = dist.new_group(list(range(1, size, 2)))
    alone = dist.new_group([size - 1])
    mine, members = (evens, range(0, size, 2)) if rank % 2 == 0 else (odds, range(1, size, 2))
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mine)
    equal(tensor, torch.tensor([float(sum(members))]), "all_reduce in a group")
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, members[-1], group=mine)
    equal(tensor, torch.tensor([float(members[-1])]), "broadcast in a group")
    # Uses two groups in different orders on different ranks: each group has its own order.
    first, second = dist.new_group(), dist.new_group()
    order = (first, second) if rank % 2 == 0 else (second, first)
    tensors = [torch.ones(3), torch.ones(3)]
    works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, order)]
    for work in works:
        work.wait()
    for tensor in tensors:
        equal(tensor, torch.full((3,), float(size)), "groups crosswise")
    if rank == size - 1:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=alone)
        equal(tensor, torch.ones(2), "a group of one")
    dist.destroy_process_group(first)
    dist.barrier()


def bad_input(rank, size):
    raises(ValueError, "tensors must be contiguous", lambda: dist.all_reduce(torch.ones(9, 9)[:, :4]))
    raises(ValueError, "torch.complex64", lambda: tutti_group().allreduce([torch.ones(2).cfloat()]))
    raises(ValueError, "rank", lambda: tutti_group().send([torch.ones(1)], rank))
    raises(ValueError, "output has", lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(7)))
    raises(ValueError, "on meta", lambda: tutti_group().allreduce([torch.ones(2, device="meta")]))
    # Ranks with different arguments get an error, and the group still works.
    raises(RuntimeError, "", lambda: dist.all_reduce(torch.ones(4 + rank)))
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    equal(tensor, torch.full((4,), float(size)), "all_reduce after a mismatch")


if __name__ == "__main__":
    run(
        all_reduce,
        all_reduce_of_other_layouts,
        all_reduce_sparse,
        all_reduce_coalesced,
        broadcast,
        reduce,
        all_gather,
        all_gather_into_tensor,
        all_gather_coalesced,
        gather_and_scatter,
        reduce_scatter,
        all_to_all,
        messages,
        messages_from_any_rank,
        objects,
        barriers,
        futures,
        groups,
        bad_input,
    )
