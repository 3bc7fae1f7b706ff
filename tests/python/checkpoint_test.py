"""Reads checkpoints in Python that a C++ program wrote. One argument:
examples/resumable_trainer."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy

import tutti
import tutti.checkpoint

TRAINER = sys.argv.pop()


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name) / "checkpoints"
        command = [os.environ["LAUNCHER"], "-np", "2", TRAINER, str(self.folder), "30"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def test_parts_of_all_ranks_make_up_the_tensors(self):
        self.assertEqual(tutti.checkpoint.steps(self.folder), [20, 30])
        newest = tutti.checkpoint.read(self.folder)
        self.assertEqual(newest.step, 30)
        self.assertEqual(newest.words["sampler"], "epoch 0 consumed 720 of 1009 seed 7 order 2")
        weights = newest.tensors["weights"]
        self.assertEqual((weights.shape, weights.dtype), ((2,), numpy.float32))
        self.assertTrue(2 < weights[0] < 3.5 and -1.2 < weights[1] < -0.5, weights)
        older = tutti.checkpoint.read(self.folder, 20)
        self.assertEqual(older.step, 20)
        self.assertFalse(numpy.array_equal(older.tensors["weights"], weights))

    def test_one_that_is_about_to_be_replaced_is_there(self):
        newest = tutti.checkpoint.read(self.folder)
        (self.folder / "step-30").rename(self.folder / ".step-30.replaced")
        self.assertEqual(tutti.checkpoint.steps(self.folder), [20, 30])
        replaced = tutti.checkpoint.read(self.folder)
        self.assertEqual(replaced.step, 30)
        numpy.testing.assert_array_equal(replaced.tensors["weights"], newest.tensors["weights"])

    def test_parts_that_leave_a_gap_are_refused(self):
        place = self.folder / "step-30" / "manifest.json"
        manifest = json.loads(place.read_text())
        for parts, text in (
            (lambda parts: parts[1:], "no part of tensor .* begins at element 0"),
            (lambda parts: parts[:-1], "end at element|begins at element"),
        ):
            changed = json.loads(json.dumps(manifest))
            tensors = changed["checkpoint"]["tensors"]
            name = next(name for name, tensor in tensors.items() if tensor["parts"])
            tensors[name]["parts"] = parts(tensors[name]["parts"])
            place.write_text(json.dumps(changed))
            with self.assertRaisesRegex(tutti.CorruptDataError, text):
                tutti.checkpoint.read(self.folder)

    def test_what_is_not_there_or_not_whole_is_refused(self):
        with self.assertRaisesRegex(tutti.InputOutputError, r"no step 7 in .* there are \[20, 30\]"):
            tutti.checkpoint.read(self.folder, 7)
        part = self.folder / "step-30" / "rank-00001.safetensors"
        part.write_bytes(part.read_bytes()[:-1])
        with self.assertRaisesRegex(tutti.CorruptDataError, r"has \d+ bytes, expected \d+"):
            tutti.checkpoint.read(self.folder)


if __name__ == "__main__":
    unittest.main()
