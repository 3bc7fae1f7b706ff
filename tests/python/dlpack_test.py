"""Tests each field of DLPack with capsules made here, which numpy would not fill in this way."""

import ctypes
import unittest

import numpy
from support import DEADLINE, on_threads

import tutti


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensor))
DLManagedTensor._fields_ = [
    ("dl_tensor", DLTensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
]


class Capsule:
    """An array whose DLPack capsule has the fields that a test wants."""

    def __init__(
        self, array, *, shape, offset=0, strides=None, code=2, bits=32, lanes=1, device=(1, 0)
    ):
        self.array = array
        self.made = self.deleted = 0
        self._device = device
        self._deleter = _Deleter(self._delete)
        extents = ctypes.c_int64 * len(shape)
        self._shape, self._strides = extents(*shape), strides and extents(*strides)
        self._managed = DLManagedTensor(
            DLTensor(
                array.ctypes.data, *device, len(shape), code, bits, lanes, self._shape,
                self._strides, offset,
            ),
            None,
            self._deleter,
        )  # fmt: skip

    def _delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **_):
        self.made += 1
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._managed), b"dltensor", None)


class Dlpack(unittest.TestCase):
    def on_two(self, function):
        """Runs on two ranks, each with twelve elements that hold its rank."""
        on_threads(2, lambda comm: function(comm, numpy.full(12, comm.rank, "f4")))

    def check(self, own, rank, begin, end, value):
        """Checks elements [begin, end), and that the others are unchanged."""
        wanted = numpy.full(12, rank, "f4")
        wanted[begin:end] = value
        numpy.testing.assert_array_equal(own, wanted)

    def test_byte_offset(self):
        def rank(comm, own):
            middle = Capsule(own, offset=16, shape=(2, 2))
            comm.allreduce("x", middle, "sum").wait(DEADLINE)
            self.check(own, comm.rank, 4, 8, 1)
            self.assertEqual(middle.deleted, 1)

        self.on_two(rank)

    def test_strides_count_elements_and_mean_nothing_along_one(self):
        def rank(comm, own):
            strided = Capsule(own, offset=4, shape=(1, 3, 2), strides=(77, 2, 1))
            comm.allreduce("x", strided, "sum").wait(DEADLINE)
            self.check(own, comm.rank, 1, 7, 1)

        self.on_two(rank)

    def test_lanes_are_bytes_of_one_element(self):
        def rank(comm, own):
            comm.broadcast("x", Capsule(own, offset=16, shape=(1,), strides=(1,), lanes=4), 1).wait(
                DEADLINE
            )
            self.check(own, comm.rank, 4, 8, 1)
            complex_pairs = Capsule(own, shape=(2,), code=5, bits=64)
            got = comm.allgather("pairs", complex_pairs).wait(DEADLINE)
            self.assertEqual((got.dtype, got.shape), ("raw", (4, 8)))

        self.on_two(rank)

    def test_pinned_memory_is_host_memory(self):
        def rank(comm, own):
            comm.allreduce("x", Capsule(own, shape=(12,), device=(3, 7)), "sum").wait(DEADLINE)
            self.check(own, comm.rank, 0, 12, 1)

        self.on_two(rank)

    def test_what_is_refused_is_given_back(self):
        """The capsule's deleter, written in Python, runs while the error is being raised."""

        def rank(comm, own):
            for text, wrong in {
                r"strides are \[8\] bytes": Capsule(own, shape=(3,), strides=(2,)),
                r"strides are \[4,12\] bytes": Capsule(own, shape=(3, 4), strides=(1, 3)),
                "type 2 of 12 bits": Capsule(own, shape=(3,), bits=12),
                "type 3 of 64 bits": Capsule(own, shape=(3,), code=3, bits=64),
                "DLPack's device 8": Capsule(own, shape=(3,), device=(8, 0)),
                "9 dimensions": Capsule(own, shape=(1,) * 9),
            }.items():
                with self.assertRaisesRegex(tutti.InvalidArgumentError, text):
                    comm.allreduce("wrong", wrong, "sum")
                self.assertEqual(wrong.deleted, wrong.made, text)

        self.on_two(rank)


if __name__ == "__main__":
    unittest.main()
