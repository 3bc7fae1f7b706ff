"""Checkpoints of three ranks, read by the safetensors package into torch's tensors, and by
tutti.checkpoint. One argument: tests/adapters/checkpoint_writer."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import safetensors
import safetensors.torch
import torch

import tutti.checkpoint

WRITER = sys.argv.pop()
STEP = 7
TYPES = {"w": torch.float32, "table": torch.float32, "half": torch.bfloat16, "none": torch.float32,
         "steps": torch.int64, "few": torch.float64}
SHAPES = {"w": (7, 3), "table": (1001,), "half": (33,), "none": (0, 4), "steps": (), "few": (2,)}


def bytes_of(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def expected(name, count):
    return bytes((at * 37 + at // 256 + STEP * 101 + len(name)) % 256 for at in range(count))


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        subprocess.run([os.environ["LAUNCHER"], "-np", "3", WRITER, self.folder, str(STEP)],
                       check=True, timeout=60)
        self.step = self.folder / f"step-{STEP}"
        self.manifest = json.loads((self.step / "manifest.json").read_text())["checkpoint"]

    def test_torch_reads_the_files_of_all_ranks(self):
        files = [safetensors.torch.load_file(self.step / file["name"])
                 for file in self.manifest["files"]]
        self.assertEqual(len(files), 3)
        self.assertEqual(set(self.manifest["tensors"]), set(TYPES))
        for name, tensor in self.manifest["tensors"].items():
            parts = [files[part["file"]][name].reshape(-1) for part in tensor["parts"]]
            whole = torch.cat(parts) if parts else torch.empty(0, dtype=TYPES[name])
            whole = whole.reshape(tensor["shape"])
            self.assertEqual((whole.dtype, tuple(whole.shape)), (TYPES[name], SHAPES[name]), name)
            size = whole.numel() * whole.element_size()
            self.assertEqual(bytes_of(whole) if size else b"", expected(name, size), name)

    def test_the_words_of_a_file_say_which_elements_a_part_holds(self):
        with safetensors.safe_open(self.step / "rank-00001.safetensors", "pt") as file:
            self.assertEqual(file.metadata()["table"], "elements 334 to 668 of [1001]")
            self.assertEqual(file.get_tensor("table").shape, (334,))

    def test_our_reader_gives_the_same(self):
        read = tutti.checkpoint.read(self.folder)
        self.assertEqual((read.step, read.words), (STEP, {"who": "a test"}))
        for name, whole in read.tensors.items():
            self.assertEqual(whole.shape, SHAPES[name])
            self.assertEqual(whole.tobytes(), expected(name, whole.nbytes), name)


if __name__ == "__main__":
    unittest.main()
