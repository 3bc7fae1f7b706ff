"""Trains a linear model on numpy arrays, data-parallel: each rank has its own rows.

    tutti-run -np 4 python3 numpy_allreduce.py     or     python3 -m tutti.run -np 4 ...

Without a launcher it runs as one rank. It checks its own result.
"""

import numpy

import tutti

WEIGHTS = numpy.array([[2.0], [-3.0], [0.5]])


def main():
    with tutti.Communicator.create() as comm:
        random = numpy.random.default_rng(comm.rank)
        inputs = random.standard_normal((200, 3))
        targets = inputs @ WEIGHTS + 1.0

        weights, bias = random.standard_normal((3, 1)), numpy.zeros(1)
        comm.broadcast("weights", weights).wait()  # all ranks start with the same weights
        for _ in range(200):
            error = inputs @ weights + bias - targets
            loss = comm.allreduce_value("loss", float((error**2).mean()))
            # The earliest gradient is submitted first. The names match the gradients across the
            # ranks.
            gradient = {"bias": error.mean(axis=0), "weights": inputs.T @ error / len(inputs)}
            works = [comm.allreduce(name, array) for name, array in gradient.items()]
            for work in works:
                work.wait()
            weights -= 0.2 * gradient["weights"]
            bias -= 0.2 * gradient["bias"]

        replicas = comm.allgather_object("replicas", (weights.tobytes(), bias.tobytes()))
        assert all(replica == replicas[0] for replica in replicas), "the ranks' models differ"
        assert numpy.allclose(weights, WEIGHTS, atol=1e-3) and loss < 1e-5, (weights, loss)
        if comm.rank == 0:
            print(f"{comm.size} ranks over {comm.backend}: loss {loss:.1e}, weights {weights[:, 0]}")


if __name__ == "__main__":
    main()
