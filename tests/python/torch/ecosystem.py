"""Software that uses torch's process groups: torchrun, the debug mode DETAIL, torch's checkpoints,
accelerate and Lightning. Each case is a program on two ranks that torchrun starts. With Debian's
torch 1.13, tutti-run starts it, because that torchrun does not work under Python 3.11."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])

BEGIN = """
import os, sys, torch
import torch.distributed as dist
import tutti, tutti.torch
torch.set_num_threads(1)
folder = sys.argv[1]
"""


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"{', '.join(missing)} is not installed")


def since(*version):
    return unittest.skipIf(VERSION < version, f"not in torch {torch.__version__}")


class Ecosystem(unittest.TestCase):
    def on_two_ranks(self, program, **variables):
        launcher = ("TUTTI_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(launcher)
        }
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "program.py"
            file.write_text(BEGIN + program)
            if VERSION >= (2, 0):
                command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
                command += ["--nproc_per_node", "2"]
            else:
                command = [os.environ["LAUNCHER"], "-np", "2", sys.executable]
            command += [str(file), folder]
            ran = subprocess.run(
                command,
                env={**environment, "OMP_NUM_THREADS": "1", **variables},
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
        self.assertEqual(ran.returncode, 0, f"{ran.stdout[-4000:]}\n{ran.stderr[-6000:]}")
        return ran.stdout + ran.stderr

    def test_a_launcher(self):
        out = self.on_two_ranks("""
dist.init_process_group("tutti")
tensor = torch.ones(3) * dist.get_rank()
dist.all_reduce(tensor)
assert tensor.tolist() == [1, 1, 1], tensor
# By one write: torchrun lets the ranks write unbuffered into one pipe.
os.write(1, f"backend {dist.get_backend()}\\n".encode())
dist.destroy_process_group()
""")
        self.assertEqual(out.count("backend tutti"), 2)

    def test_in_debug_mode_calls_are_compared(self):
        self.on_two_ranks("""
dist.init_process_group("tutti")
rank = dist.get_rank()
for _ in range(3):
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2, 2, 2]
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
ddp(torch.ones(1, 3)).sum().backward()
try:
    dist.all_reduce(torch.ones(3 + rank))
except RuntimeError as error:
    text = str(error)
else:
    raise AssertionError("nothing was said of calls that differ")
# torch compares them itself where it wraps the backend.
assert "mismatch" in text.lower() or "must" in text, text
""", TORCH_DISTRIBUTED_DEBUG="DETAIL")

    @since(2, 7)
    def test_torchs_checkpoints(self):
        self.on_two_ranks("""
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
dist.init_process_group("tutti")

def trained(seed, steps):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        model(torch.ones(2, 6) * step).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer

model, optimizer = trained(1, 3)
weights, state = get_state_dict(model, optimizer)
checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder + "/saved")
other, other_optimizer = trained(2, 1)
weights, state = get_state_dict(other, other_optimizer)
whole = {"model": weights, "optimizer": state}
checkpoint.load(whole, checkpoint_id=folder + "/saved")
set_state_dict(other, other_optimizer, model_state_dict=whole["model"],
               optim_state_dict=whole["optimizer"])
for mine, loaded in zip(model.parameters(), other.parameters()):
    assert torch.equal(mine.full_tensor(), loaded.full_tensor())
first = optimizer.state_dict()["state"][0]["exp_avg"].full_tensor()
assert torch.equal(first, other_optimizer.state_dict()["state"][0]["exp_avg"].full_tensor())
future = checkpoint.async_save({"model": weights}, checkpoint_id=folder + "/later",
                               process_group=dist.new_group())
future.result()
dist.destroy_process_group()
""")

    # With its own option, accelerate accepts only mpi and gloo on the CPU.
    @needs("accelerate")
    def test_accelerate(self):
        self.on_two_ranks("""
from accelerate import Accelerator
dist.init_process_group("tutti")  # which accelerate then takes as it is
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2, accelerator.state
torch.manual_seed(accelerator.process_index)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
assert tutti.torch.group_of(model.process_group)
for batch in data:
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
weights = accelerator.gather(model.module.weight.detach()[None])
assert torch.equal(weights[0], weights[1])
assert accelerator.reduce(torch.ones(1)).item() == 2
accelerator.wait_for_everyone()
accelerator.end_training()
""", ACCELERATE_USE_CPU="true")

    @needs("lightning")
    def test_lightning(self):
        self.on_two_ranks("""
import lightning
from lightning.pytorch.strategies import DDPStrategy

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, index):
        assert dist.get_backend() == "tutti"
        loss = self.layer(batch).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="tutti"), max_epochs=1,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, default_root_dir=folder,
)
model = Model()
trainer.fit(model, torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4))
weights = [torch.empty(2, 4) for _ in range(2)]
dist.all_gather(weights, model.layer.weight.detach())
assert torch.equal(weights[0], weights[1])
""")


if __name__ == "__main__":
    unittest.main()
