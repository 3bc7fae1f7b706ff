"""Trains an example on several ranks, and on one with the same batches: after 30 steps of SGD the
results differ by 1e-4 at most. With the learning rate used here, training does not amplify the
rounding of a sum. With the examples' own rates, 1e-8 may become 1e-1 within these steps."""

import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch

TOLERANCE = 1e-4
STEPS = 30
LEARNING_RATE = 0.005
VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])


def trained(script, ranks, folder):
    file = pathlib.Path(folder) / (f"{ranks}.npz" if "jax" in script else f"{ranks}.pt")
    command = [os.environ["LAUNCHER"], "-np", str(ranks), sys.executable, script]
    command += ["--steps", str(STEPS), "--learning-rate", str(LEARNING_RATE), "--save", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if ran.returncode != 0:
        raise AssertionError(f"{ranks} ranks: exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
    if file.suffix == ".npz":
        return {name: torch.from_numpy(values) for name, values in numpy.load(file).items()}
    return torch.load(file)


def main(script, *ranks):
    if "fsdp2" in script and VERSION < (2, 7):
        print(f"examples.py: Skipped\nFSDP2 on the CPU needs torch 2.7, this is {torch.__version__}")
        return
    with tempfile.TemporaryDirectory() as folder:
        alone = trained(script, 1, folder)
        for count in map(int, ranks):
            shared = trained(script, count, folder)
            assert alone.keys() == shared.keys() and alone, (list(alone), list(shared))
            differences = {name: (shared[name] - alone[name]).abs().max().item() for name in alone}
            name = max(differences, key=differences.__getitem__)
            print(f"{count} ranks: {name} differs most, by {differences[name]:.2e}", flush=True)
            assert differences[name] <= TOLERANCE


if __name__ == "__main__":
    main(*sys.argv[1:])
