"""A program that uses tutti.torch with types. mypy --strict checks it and the package; it never
runs."""

import torch
import torch.distributed as dist

import tutti
import tutti.torch
import tutti.torch as hvd


def under_torch(model: torch.nn.Module) -> None:
    dist.init_process_group("tutti")
    own = tutti.torch.DistributedDataParallel(model, wire="bf16", find_unused_parameters=True)
    with own.no_sync():
        own(torch.ones(3))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    tutti.torch.register_ddp_hook(ddp, wire="f16")
    ddp.register_comm_hook(tutti.torch.HookState(model), tutti.torch.ddp_hook)
    group: tutti.torch.Group = tutti.torch.group_of(dist.group.WORLD)
    group.monitored_barrier()
    communicator: tutti.Communicator = group.communicator
    print(communicator.rank, group.seconds)


def as_horovod(model: torch.nn.Module) -> None:
    hvd.init()
    rank: int = hvd.rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    wrapped.synchronize()
    with wrapped.skip_synchronize():
        wrapped.step()
    total: torch.Tensor = hvd.allreduce(torch.ones(3), op=hvd.Sum)
    handle: int = hvd.allreduce_async(torch.ones(3), name="a")
    done: bool = hvd.poll(handle)
    some = hvd.add_process_set(hvd.ProcessSet([0]))
    hvd.barrier(some)
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    try:
        state.commit()
    except hvd.HorovodInternalError as error:
        print(rank, total, done, hvd.synchronize(handle), error)
    hvd.shutdown()
