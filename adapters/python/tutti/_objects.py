"""Sends objects between ranks, by pickle or a module with the same dumps and loads. A rank that
cannot send its object still takes part and sends the reason instead. The call then ends with an
error on every rank, and no rank waits."""

import pickle

from ._errors import Error, described, refused

_FAILED = b"\0failed: "  # the first bytes of a reason; no pickle begins with them


def _packed(comm, make):
    """Returns the result of `make` and None as the exception. If `make` fails, returns the reason
    as bytes, and the exception."""
    try:
        return make(), None
    except Exception as error:
        return _FAILED + reason_of(error).encode(errors="replace"), error


def _opened(comm, name, parts, cause=None, loads=pickle.loads):
    """Returns the objects in `parts`, which are pairs of a rank and its bytes."""
    values = []
    for rank, part in parts:
        if part.startswith(_FAILED):
            raise could_not(name, rank, part[len(_FAILED) :].decode()) from cause
        try:
            values.append(loads(part))
        except Exception as error:
            raise refused(
                f'"{name}": rank {comm.rank} cannot unpickle the object of rank {rank} '
                f"({reason_of(error)}); what it is made of must be importable on every rank"
            ) from error
    return values


def reason_of(error):
    """Returns the reason for an error in one line."""
    text = str(error) if isinstance(error, Error) else described(error)
    return " ".join(text.split())


def could_not(name, rank, why):
    error = refused(f'"{name}": rank {rank} could not hand in its part, so no rank gets any: {why}')
    error.rank, error.tensor = rank, name
    return error


def broadcast_object(comm, name, value, root, pickler):
    if comm.rank != root:
        data = comm.broadcast_bytes(name, None, root)
        return _opened(comm, name, [(root, data)], loads=pickler.loads)[0]
    data, cause = _packed(comm, lambda: pickler.dumps(value))
    comm.broadcast_bytes(name, data, root)
    if cause is not None:
        _opened(comm, name, [(root, data)], cause)
    return value


def allgather_object(comm, name, value, pickler):
    data, cause = _packed(comm, lambda: pickler.dumps(value))
    parts = enumerate(comm.allgather_bytes(name, data))
    return _opened(comm, name, parts, cause, pickler.loads)


def gather_object(comm, name, value, root, pickler):
    data, cause = _packed(comm, lambda: pickler.dumps(value))
    # Every rank learns how many bytes each rank sends, or why a rank sends nothing.
    told = data if cause is not None else pickle.dumps(len(data))
    lengths = _opened(comm, name, enumerate(comm.allgather_bytes(name, told)), cause)
    together = comm.gather(f"{name}.bytes", data, root).wait()
    if comm.rank != root:
        return None
    together, parts, begin = together.tobytes(), [], 0
    for rank, length in enumerate(lengths):
        parts.append((rank, together[begin : begin + length]))
        begin += length
    return _opened(comm, name, parts, loads=pickler.loads)


def scatter_object(comm, name, values, root, pickler):
    together, rows, cause = None, None, None
    if comm.rank == root:
        parts, cause = _packed(comm, lambda: _parts_for_all(comm, values, pickler))
        if cause is not None:
            parts = [parts] * comm.size
        together, rows = b"".join(parts), [len(part) for part in parts]
    own = comm.scatter(name, together, root, rows).wait().tobytes()
    return _opened(comm, name, [(root, own)], cause, pickler.loads)[0]


def _parts_for_all(comm, values, pickler):
    if values is None or len(values) != comm.size:
        count = "no" if values is None else len(values)
        raise refused(f"{count} objects were given for {comm.size} ranks")
    return [pickler.dumps(value) for value in values]
