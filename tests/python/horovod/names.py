"""Every public name of Horovod's API for PyTorch (0.28) exists, with its parameters."""

import inspect
import pathlib
import tempfile
import unittest

import torch

import tutti.torch as hvd

# Maps a name to its parameters, or to None if its signature is not checked.
PUBLIC = {
    "init": "comm process_sets", "shutdown": "", "is_initialized": "",
    "rank": "", "size": "", "local_rank": "", "local_size": "", "cross_rank": "", "cross_size": "",
    "is_homogeneous": "", "start_timeline": "file_path mark_cycles", "stop_timeline": "",
    "mpi_threads_supported": "", "mpi_enabled": "", "mpi_built": "verbose",
    "gloo_enabled": "", "gloo_built": "verbose", "nccl_built": "verbose", "ddl_built": "verbose",
    "ccl_built": "verbose", "cuda_built": "verbose", "rocm_built": "verbose",
    "allreduce": "tensor average name compression op prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce":
        "tensors average name compression op prescale_factor postscale_factor process_set",
    "grouped_allreduce_": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async":
        "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async_":
        "tensors average name op prescale_factor postscale_factor process_set",
    "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set", "allgather_async": "tensor name process_set",
    "grouped_allgather": "tensors name process_set",
    "grouped_allgather_async": "tensors name process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter":
        "tensor name compression op process_set prescale_factor postscale_factor",
    "reducescatter_async": "tensor name op process_set prescale_factor postscale_factor",
    "grouped_reducescatter":
        "tensors name compression op process_set prescale_factor postscale_factor",
    "grouped_reducescatter_async": "tensors name op process_set prescale_factor postscale_factor",
    "join": "device", "barrier": "process_set", "poll": "handle", "synchronize": "handle",
    "ProcessSet": "ranks_or_comm", "global_process_set": None,
    "add_process_set": "process_set", "remove_process_set": "process_set",
    "Average": None, "Sum": None, "Adasum": None, "Min": None, "Max": None, "Product": None,
    "Compression": None,
    "DistributedOptimizer":
        "optimizer named_parameters compression backward_passes_per_step op "
        "gradient_predivide_factor num_groups groups sparse_as_dense process_set",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name",
    "SyncBatchNorm": None, "elastic": None,
    "HorovodInternalError": None, "HostsUpdatedInterrupt": None,
}  # fmt: skip
ELASTIC = ("run", "State", "ObjectState", "TorchState", "ElasticSampler")


class Names(unittest.TestCase):
    def test_every_name_is_there_with_its_parameters_in_order(self):
        for name, parameters in PUBLIC.items():
            with self.subTest(name=name):
                self.assertIn(name, hvd.__all__)
                value = getattr(hvd, name)
                if parameters is None:
                    continue
                ours = list(inspect.signature(value).parameters)
                self.assertEqual(ours[: len(parameters.split())], parameters.split())
        for name in ELASTIC:
            self.assertTrue(hasattr(hvd.elastic, name), name)

    def test_defaults(self):
        def default(call, parameter):
            return inspect.signature(call).parameters[parameter].default

        self.assertIs(default(hvd.allreduce, "compression"), hvd.Compression.none)
        self.assertEqual(default(hvd.reducescatter, "op"), hvd.Average)
        self.assertEqual(default(hvd.DistributedOptimizer, "op"), hvd.Average)
        self.assertEqual(default(hvd.DistributedOptimizer, "backward_passes_per_step"), 1)
        self.assertIs(default(hvd.barrier, "process_set"), hvd.global_process_set)
        self.assertEqual(
            [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product], list(range(6))
        )

    def test_before_init_and_after_shutdown_nothing_answers(self):
        calls = (
            hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size,
            hvd.barrier, hvd.join, hvd.stop_timeline, hvd.is_homogeneous,
        )  # fmt: skip
        for _ in range(2):
            self.assertFalse(hvd.is_initialized())
            for call in calls:
                with self.assertRaisesRegex(ValueError, "not been initialized; call init"):
                    call()
            hvd.init()
            hvd.init()
            self.assertEqual((hvd.rank(), hvd.size(), hvd.cross_size()), (0, 1, 1))
            hvd.shutdown()
            hvd.shutdown()

    def test_the_timeline(self):
        hvd.init()
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "trace.json"
            hvd.start_timeline(str(file), mark_cycles=True)
            hvd.allreduce(torch.ones(3), name="seen")
            hvd.stop_timeline()
            self.assertIn("allreduce.seen", file.read_text())
        hvd.shutdown()

    def test_what_was_built(self):
        self.assertTrue(hvd.gloo_built() and hvd.gloo_enabled())
        self.assertFalse(hvd.mpi_built() or hvd.mpi_enabled() or hvd.mpi_threads_supported())
        self.assertEqual(hvd.nccl_built(), 0)
        for call in (hvd.cuda_built, hvd.rocm_built, hvd.ddl_built, hvd.ccl_built):
            self.assertFalse(call())

    def test_errors_are_of_horovods_kinds(self):
        self.assertTrue(issubclass(hvd.HorovodInternalError, RuntimeError))
        self.assertTrue(issubclass(hvd.HostsUpdatedInterrupt, RuntimeError))
        self.assertTrue(hvd.HostsUpdatedInterrupt(skip_sync=True).skip_sync)
        self.assertTrue(issubclass(hvd.HorovodVersionMismatchError, ImportError))
        error = hvd.HorovodVersionMismatchError("torch", "1.13", "2.15")
        self.assertIn("built with 1.13", str(error))


if __name__ == "__main__":
    unittest.main()
