"""init_process_group without torchrun's variables. Under tutti-run, mpirun or srun the ranks find
each other as Tutti's do, and rank 0 serves torch's store."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

import tutti
from torch._C import _distributed_c10d as c10d

# Variables by which launchers other than torchrun give a rank its number.
_LAUNCHERS = ("TUTTI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_TIMEOUT = datetime.timedelta(minutes=30)
_ELSEWHERE = "192.0.2.1"  # the address of no host (RFC 5737); its route is the default route


def _meet(
    url: str, timeout: datetime.timedelta = _TIMEOUT, **_: Any
) -> Iterator[tuple[Any, int, int]]:
    with tutti.Communicator.create() as comm:
        store: Any = None
        place: Any = None
        if comm.rank == 0:
            host = "127.0.0.1" if comm.hosts == 1 else _own_address()
            store = c10d.TCPStore(host, 0, comm.size, True, timeout, wait_for_workers=False)
            place = (host, store.port)
        host, port = comm.broadcast_object("where torch's store is", place)
        if store is None:
            store = c10d.TCPStore(host, port, comm.size, False, timeout)
        comm.barrier("torch's store is reached").wait(timeout.total_seconds())
        rank, size = comm.rank, comm.size
    yield store, rank, size
    raise RuntimeError("tutti://: ranks cannot meet a second time in one rendezvous")


def _own_address() -> str:
    """Returns the address of this host by which others reach it. The first choice is the address on
    the route to the launcher's store, if that is on another host. The second is the address of the
    host's name, which on Debian often is 127.0.1.1. The last is that of the default route."""
    launcher = urlparse(os.environ.get("TUTTI_STORE", ""))
    name = socket.gethostname()
    found = []
    if launcher.hostname and launcher.port:
        found += _address_towards(launcher.hostname, launcher.port)
    with contextlib.suppress(OSError):
        found += socket.gethostbyname_ex(name)[2]
    found += _address_towards(_ELSEWHERE, 9)
    for address in found:
        if not address.startswith(("127.", "0.")):
            return address
    raise RuntimeError(
        f"rank 0: host {name} knows no address by which other hosts reach it (found: "
        f"{', '.join(found) or 'none'}); set MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, or fix "
        "its line in /etc/hosts"
    )


def _address_towards(host: str, port: int) -> list[str]:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        return [str(probe.getsockname()[0])]
    return []


def register() -> None:
    """Registers tutti://, and makes env:// fall back to it if RANK is not set but a launcher's
    variable is. It may be called twice."""
    rendezvous = sys.modules["torch.distributed.rendezvous"]
    handlers = rendezvous._rendezvous_handlers
    if "tutti" in handlers:
        return
    handlers["tutti"] = _meet
    torchs = handlers["env"]

    def env(url: str, **keywords: Any) -> Any:
        is_told = "RANK" in os.environ or urlparse(url).query
        if is_told or not any(name in os.environ for name in _LAUNCHERS):
            return torchs(url, **keywords)
        return _meet(url, **keywords)

    handlers["env"] = env
