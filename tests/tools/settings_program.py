"""The same program as settings_program.cc, in Python."""

import tutti

with tutti.Communicator.create({"backend": "tcp", "fusion_bytes": "1M"}) as comm:
    mean = comm.allreduce_value("value", float(comm.rank))
    if comm.rank == 0:
        print(f"{mean:g} of {comm.size} by {comm.backend}")
