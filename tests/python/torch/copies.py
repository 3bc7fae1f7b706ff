"""Copies of wrapped models, models that are gone or changed, and several models in one group."""

import copy
import gc
import io
import pickle
import time
import weakref

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import training
import tutti.torch
from ddp import train
from ranks import equal, raises, run


def from_file(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def same(got, expected, what):
    for name, value in expected.state_dict().items():
        equal(got.state_dict()[name], value, f"{what}: {name}")


def own(rank, size):
    """A copy can be trained by itself, starting from the state of the original."""
    expected = training.one_rank(size)
    for way in (copy.deepcopy, from_file):
        wrapped = tutti.torch.DistributedDataParallel(training.model())
        training.loss_of(wrapped, training.batch(0, rank)).backward()  # gradients are in the arena
        other = way(wrapped)
        same(other, wrapped, "a copy")
        other.zero_grad()
        training.compare(train(other, rank), expected, f"a copy by {way.__name__}")
        start = training.model()
        same(wrapped.module, start, "what was copied")
        wrapped.zero_grad()
        training.compare(train(wrapped, rank), expected, "what was copied")


def own_on_one_rank_alone(rank, size):
    """One rank alone makes copies, as for a running mean of the weights or a checkpoint."""
    wrapped = tutti.torch.DistributedDataParallel(training.model())
    data = training.batch(0, rank)
    if rank == 0:
        for kept in (copy.deepcopy(wrapped), from_file(wrapped)):
            with torch.no_grad():
                training.loss_of(kept.eval(), data)
            for parameter in kept.parameters():
                parameter.requires_grad_(False)
            training.loss_of(kept.train(), data)
    training.compare(train(wrapped, rank), training.one_rank(size), "beside copies of one rank")
    dist.barrier()


def torchs_with_the_hook(rank, size):
    expected = training.one_rank(size)
    ddp = DistributedDataParallel(training.model(), bucket_cap_mb=0.002)
    state = tutti.torch.HookState(ddp.module)
    ddp.register_comm_hook(state, tutti.torch.ddp_hook)
    training.loss_of(ddp, training.batch(0, rank)).backward()
    for way in (copy.deepcopy, from_file):
        other = way(ddp)
        other.zero_grad()
        training.compare(train(other, rank), expected, f"DDP with ddp_hook by {way.__name__}")
        module, known = way((ddp.module, state))
        module.zero_grad()
        other = DistributedDataParallel(module, bucket_cap_mb=0.002)
        other.register_comm_hook(known, tutti.torch.ddp_hook)
        training.compare(train(other, rank), expected, f"HookState by {way.__name__}")


def groups(rank, size):
    default = tutti.torch.group_of()
    for way in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        assert way(default) is default
    other = tutti.torch.group_of(dist.new_group())
    assert copy.deepcopy(other) is other
    raises(TypeError, "cannot be pickled, only the default group", lambda: pickle.dumps(other))


def gone(rank, size):
    """Without a garbage collector, a wrapped model is freed even if a kept graph holds the nodes
    that had the hooks."""
    module = training.model()
    gc.disable()
    wrapped = tutti.torch.DistributedDataParallel(module)
    training.loss_of(wrapped, training.batch(0, rank)).backward()
    kept = training.loss_of(wrapped, training.batch(0, rank))
    seen = [weakref.ref(wrapped), weakref.ref(wrapped._reducer)]
    del wrapped
    equal([one() for one in seen], [None, None], "a wrapped model that is gone")
    module.zero_grad()
    again = tutti.torch.DistributedDataParallel(module)
    training.compare(train(again, rank), training.one_rank(size), "a model that is wrapped again")
    assert kept is not None
    gc.enable()


def changed(rank, size):
    """If a model changes on one rank only, the error comes before the forward pass."""

    def thaw(module):
        module.conv.requires_grad_(True)

    def replace(module):
        module.out.weight = torch.nn.Parameter(module.out.weight.detach().clone())

    def cast(module):
        module.double()

    def layer(module):
        module.out = torch.nn.Sequential(module.out, torch.nn.Linear(3, 3))

    def add(module):
        module.register_parameter("later", torch.nn.Parameter(torch.ones(1)))

    for change, name, text in (
        (thaw, "conv.weight", "requires a gradient and did not"),
        (replace, "out.weight", "or was put there since"),
        (cast, "embedding.weight", "was torch.float32 on cpu when the model was wrapped"),
        (layer, "out.1.weight", "or was put there since"),
        (add, "later", "or was put there since"),
    ):
        module = training.model()
        module.conv.requires_grad_(False)
        wrapped = tutti.torch.DistributedDataParallel(module)
        data = training.batch(0, rank)
        training.loss_of(wrapped, data).backward()
        change(module)
        raises(RuntimeError, f'rank {rank}: parameter "{name}"', lambda: wrapped(*data[:2]))
        raises(RuntimeError, text, lambda: wrapped(*data[:2]))
        with wrapped.no_sync():
            if change is not cast:
                training.loss_of(wrapped, data)


def several(rank, size):
    """Several models of one class have gradients in flight at the same time."""
    seeds = (1, 2, 3)

    def critic(seed):
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(64, 64) for _ in range(6)]
        return torch.nn.Sequential(*layers)

    def batch(step, of):
        return torch.randn(4, 64, generator=torch.Generator().manual_seed(100 * step + of))

    ways = {
        "torch's with the hook": lambda module: DistributedDataParallel(module, bucket_cap_mb=0.01),
        "its own": tutti.torch.DistributedDataParallel,
    }
    for what, wrap in ways.items():
        models = [wrap(critic(seed)) for seed in seeds]
        if what != "its own":
            for model in models:
                tutti.torch.register_ddp_hook(model)
        plain = [critic(seed) for seed in seeds]
        steps = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models + plain]
        for step in range(10):
            for optimizer in steps:
                optimizer.zero_grad()
            data = batch(step, rank)
            # One graph spans all models, so their buckets alternate.
            sum(model(data).square().mean() for model in models).backward()
            for of in range(size):
                (sum(model(batch(step, of)).square().mean() for model in plain) / size).backward()
            for optimizer in steps:
                optimizer.step()
        for model, expected in zip(models, plain):
            training.compare(model, expected, f"several models, {what}")


class Bucket:
    """A bucket like torch's, for a hook that does not wait. On a GPU no hook ever waits."""

    def __init__(self, module, value):
        self.module = module
        self.memory = torch.full((6,), value)

    def buffer(self):
        return self.memory

    def index(self):
        return 0

    def parameters(self):
        return list(self.module.parameters())

    def is_last(self):
        return False


def buckets_of_two_models_in_flight(rank, size):
    modules = [torch.nn.Linear(2, 2) for _ in range(2)]
    states = [tutti.torch.HookState(module) for module in modules]
    for turn in range(3):
        buckets = [Bucket(module, 10.0 * at + rank) for at, module in enumerate(modules)]
        if rank == size - 1:
            time.sleep(0.3)  # both buckets are in flight on the other ranks
        # This rank uses another order, as threads might.
        order = [1, 0] if rank == size - 1 else [0, 1]
        futures = {at: tutti.torch.ddp_hook(states[at], buckets[at]) for at in order}
        for at in range(2):
            mean = 10.0 * at + sum(range(size)) / size
            equal(futures[at].wait(), torch.full((6,), mean), f"bucket of model {at}, turn {turn}")


if __name__ == "__main__":
    run(
        own,
        own_on_one_rank_alone,
        torchs_with_the_hook,
        groups,
        gone,
        changed,
        several,
        buckets_of_two_models_in_flight,
    )
