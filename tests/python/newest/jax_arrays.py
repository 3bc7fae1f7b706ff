"""tutti.jax on every rank: the results of its calls, inside and outside of jit, and its
refusals."""

import sys
import unittest
import unittest.mock

import jax
import jax.numpy as jnp
import numpy
import optax
from support import RankTest

import tutti
import tutti.jax

DTYPES = ["float32", "float16", "bfloat16", "int8", "int16", "int32", "uint8", "uint16", "uint32"]


class Arrays(RankTest):
    def equal(self, got, expected):
        """Expects equal bits, dtype and shape."""
        self.assertIsInstance(got, jax.Array)
        self.assertEqual((got.dtype, got.shape), (expected.dtype, expected.shape))
        numpy.testing.assert_array_equal(numpy.asarray(got), numpy.asarray(expected))

    def refused(self, text, call):
        with self.assertRaisesRegex(tutti.InvalidArgumentError, text) as caught:
            call()
        self.assertNotIn("\n", str(caught.exception))
        self.assertIn(f"rank {self.rank}: ", str(caught.exception))

    def total(self):
        return self.size * (self.size + 1) // 2

    def test_allreduce_of_every_dtype(self):
        for dtype in DTYPES:
            with self.subTest(dtype=dtype):
                mine = jnp.arange(6).reshape(2, 3).astype(dtype) * (self.rank + 1)
                got = tutti.jax.allreduce(self.comm, f"sum {dtype}", mine, "sum")
                self.equal(got, (jnp.arange(6).reshape(2, 3) * self.total()).astype(dtype))
        both = tutti.jax.allreduce(self.comm, "bool", jnp.array([True, self.rank == 0]), "min")
        self.equal(both, jnp.array([True, self.size == 1]))

    def test_trees_keep_their_structure(self):
        tree = {
            "dense": [jnp.ones((2, 2)) * self.rank, jnp.zeros((0, 3))],
            "steps": self.rank,
            "numpy": numpy.full(3, self.rank, "i4"),
            "scalar": jnp.float32(self.rank),
        }
        got = tutti.jax.allreduce(self.comm, "tree", tree, "max")
        last = self.size - 1
        self.equal(got["dense"][0], jnp.ones((2, 2)) * last)
        self.equal(got["dense"][1], jnp.zeros((0, 3)))
        self.equal(got["steps"], jnp.asarray(last))
        self.equal(got["numpy"], jnp.full(3, last, "i4"))
        self.equal(got["scalar"], jnp.float32(last))
        self.equal(tree["dense"][0], jnp.ones((2, 2)) * self.rank)  # the input is unchanged
        self.assertEqual(tutti.jax.allreduce(self.comm, "empty", {}), {})

    def test_a_transposed_array_goes_by_its_rows(self):
        tree = jnp.arange(6.0).reshape(2, 3).T
        self.equal(tutti.jax.allreduce(self.comm, "transposed", tree), tree)

    def test_allgather_of_unequal_rows(self):
        mine = jnp.full((self.rank + 1, 2), self.rank, jnp.bfloat16)
        got = tutti.jax.allgather(self.comm, "rows", [mine])[0]
        parts = [jnp.full((rank + 1, 2), rank, jnp.bfloat16) for rank in range(self.size)]
        self.equal(got, jnp.concatenate(parts))

    def test_broadcast(self):
        root = self.size - 1
        tree = {"w": jnp.full(5, self.rank, jnp.bfloat16), "n": jnp.int32(self.rank)}
        got = tutti.jax.broadcast(self.comm, "from the last", tree, root)
        self.equal(got["w"], jnp.full(5, root, jnp.bfloat16))
        self.equal(got["n"], jnp.int32(root))

    def test_in_jit(self):
        @jax.jit
        def step(tree):
            summed = tutti.jax.allreduce_in_jit(self.comm, "jit sum", tree, "sum")
            rows = tutti.jax.allgather_in_jit(self.comm, "jit rows", tree["b"])
            first = tutti.jax.broadcast_in_jit(self.comm, "jit first", tree["w"] * 2)
            return summed, rows, first

        for turn in range(1, 4):  # traced once
            tree = {"w": jnp.full((2, 3), (self.rank + 1) * turn), "b": jnp.array([self.rank * 1.5])}
            summed, rows, first = step(tree)
            self.equal(summed["w"], jnp.full((2, 3), self.total() * turn))
            self.equal(rows, jnp.arange(self.size) * 1.5)
            self.equal(first, jnp.full((2, 3), 2 * turn))

    def test_large_arrays_in_jit(self):
        """The array has more elements than XLA's threads take at one time."""
        double = jax.jit(
            lambda x: tutti.jax.allreduce_in_jit(self.comm, "large", x * 2, "sum") + 1
        )
        x = jnp.ones((1 << 20,))
        for _ in range(3):
            self.equal(double(x), jnp.full((1 << 20,), 2.0 * self.size + 1))

    def test_average_gradients_with_optax(self):
        optimizer = optax.chain(tutti.jax.average_gradients(self.comm), optax.adam(0.1))
        alone = optax.adam(0.1)
        weights = {"w": jnp.ones(3), "b": jnp.zeros(())}
        expected = weights
        state, expected_state = optimizer.init(weights), alone.init(weights)
        jitted = jax.jit(optimizer.update)
        for turn in range(4):
            mine = {"w": jnp.full(3, self.rank + turn, "f4"), "b": jnp.float32(self.rank - turn)}
            middle = (self.size - 1) / 2
            mean = {"w": jnp.full(3, middle + turn), "b": jnp.float32(middle - turn)}
            update = jitted if turn % 2 else optimizer.update
            updates, state = update(mine, state, weights)
            weights = optax.apply_updates(weights, updates)
            updates, expected_state = alone.update(mean, expected_state)
            expected = optax.apply_updates(expected, updates)
        numpy.testing.assert_allclose(weights["w"], expected["w"], rtol=1e-5)
        numpy.testing.assert_allclose(weights["b"], expected["b"], rtol=1e-5)

    def test_what_is_refused(self):
        calls = tutti.jax
        for text, tree in {
            r"\"x\['a'\]\" has dtype complex64 \(expected one of": {"a": jnp.ones(2, "c8")},
            r"\"x\[0\]\" has dtype float8_e4m3fn": [jnp.ones(2, jnp.float8_e4m3fn)],
            r"\"x\" has dtype key": jax.random.key(0),
            r"\"x\" is of type str; pass a tree": "text",
            r"\"x\" has dtype object": numpy.array([None]),
        }.items():
            with self.subTest(text=text):
                self.refused(text, lambda tree=tree: calls.allreduce(self.comm, "x", tree))
        self.refused("scalar, which has no rows", lambda: calls.allgather(self.comm, "x", 1.0))
        traced = jax.jit(lambda x: calls.allreduce(self.comm, "x", x))
        self.refused("is traced.*inside jit call allreduce_in_jit", lambda: traced(jnp.ones(2)))
        graded = jax.grad(lambda x: calls.allreduce(self.comm, "x", x).sum())
        self.refused("is traced", lambda: graded(jnp.ones(2)))

        gpu = unittest.mock.Mock(platform="gpu", __str__=lambda self: "cuda:0")
        place = lambda *on: lambda: calls._check_place(self.comm, "x", on)  # noqa: E731
        self.refused("lies on cuda:0 .expected the CPU.; pass jax.device_get", place(gpu))
        self.refused("is spread over 2 devices .expected one", place(gpu, gpu))
        # Nothing of these has travelled.
        self.equal(calls.allreduce(self.comm, "x", jnp.ones(1)), jnp.ones(1))

    def test_what_fails_in_jit_is_raised(self):
        failing = jax.jit(lambda x: tutti.jax.broadcast_in_jit(self.comm, "no root", x, 77))
        with self.assertRaisesRegex(Exception, "77"):
            jax.block_until_ready(failing(jnp.ones(2)))
            jax.effects_barrier()
        self.equal(tutti.jax.allreduce(self.comm, "after", jnp.ones(1)), jnp.ones(1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
