"""A program that uses the package with types. mypy --strict checks it; it never runs."""

import asyncio

import numpy

import tutti


class OwnStore(tutti.Store):
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes:
        if self.values.get(key) == expected:
            self.values[key] = desired
        return self.values.get(key, b"")

    def add(self, key: str, amount: int) -> int:
        value = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(value).encode()
        return value


async def waits(comm: tutti.Communicator) -> None:
    await comm.barrier()


def main() -> None:
    with tutti.Communicator.create({"fusion_bytes": "1M"}, OwnStore(), rank=0, size=1) as comm:
        gradient = numpy.zeros(3)
        work: tutti.Work = comm.allreduce("gradient", gradient, "sum", wire="bf16", priority=1)
        work.add_done_callback(lambda done: print(done.name))
        work.wait(timeout=1.0)
        rows: tuple[int, ...] = comm.allgather("a", gradient).received_counts()
        tensor: tutti.Tensor = comm.alltoall("b", gradient, [3]).output()
        value: float = comm.allreduce_value("loss", 1.0)
        names: list[str] = comm.allgather_object("names", "me")
        half: tutti.Communicator | None = comm.split(0)
        with comm.arena({"w": ("f32", (3, 4))}, may_be_left_out=["w"]) as arena:
            arena.leave_out("w")
            arena.wait()
            used: bool = arena.used("w")
        for name, number in comm.statistics():
            print(name, number, rows, tensor.shape, value, names, half, used)
        asyncio.run(waits(comm))
        memory = tutti.Memory(gradient.ctypes.data, gradient.shape, "f64", owner=gradient)
        try:
            comm.broadcast("c", memory).wait()
        except tutti.PeerError as error:
            print(error.rank, error.tensor, error.code)


main()
