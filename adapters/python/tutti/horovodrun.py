"""python -m tutti.horovodrun: the launcher tutti-run, called with horovodrun's flags."""

import argparse
import os
import sys

from . import run


def parser():
    made = argparse.ArgumentParser(
        prog="python -m tutti.horovodrun", description=__doc__, allow_abbrev=False
    )
    add = made.add_argument
    add("-v", "--version", action="store_true")
    add("-np", "--num-proc", type=int, dest="np", help="how many ranks")
    add("-H", "--hosts", help="a:2,b:2")
    add("-hostfile", "--hostfile", help="a file with lines like: a slots=2")
    add("-p", "--ssh-port", type=int)
    add("-i", "--ssh-identity-file")
    add("-cb", "--check-build", action="store_true", help="show what is supported, and exit")
    add("--start-timeout", type=int, help="seconds until all ranks must have met")
    add("--network-interfaces", "--network-interface", help="by name; only the first is used")
    add("--output-filename", help="a folder for the ranks' lines")
    add("--verbose", action="store_true", help="print the command of tutti-run")
    add("--config-file", help="a YAML file with these flags")
    add("--fusion-threshold-mb", type=float)
    add("--cycle-time-ms", type=float)
    add("--cache-capacity", type=int)
    add("--timeline-filename")
    add("--timeline-mark-cycles", action="store_true")
    add("--no-stall-check", action="store_true")
    add("--stall-check-warning-time-seconds", type=int)
    add("--stall-check-shutdown-time-seconds", type=int)
    add("--log-level", choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"))
    add("--min-np", "--min-num-proc", type=int, help="lost ranks do not end the others")
    for kind in ("--gloo", "--mpi", "--use-gloo", "--use-mpi", "--disable-cache"):
        add(kind, action="store_true")
    # These flags are parsed so that an error can say that they are not supported.
    add("--max-np", "--max-num-proc", type=int, help=argparse.SUPPRESS)
    for flag in ("--host-discovery-script", "--slots-per-host", "--elastic-timeout"):
        add(flag, help=argparse.SUPPRESS)
    add("--reset-limit", type=int, help=argparse.SUPPRESS)
    for flag in ("--autotune", "--jsrun", "--tcp"):
        add(flag, action="store_true", help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER)
    return made


def hosts_in(file):
    """Reads the lines of a hostfile: a, a:2 or a slots=2."""
    hosts = []
    with open(file) as lines:
        for line in lines:
            words = line.split("#")[0].split()
            if words:
                slots = [word[len("slots=") :] for word in words[1:] if word.startswith("slots=")]
                hosts.append(f"{words[0]}:{slots[0]}" if slots else words[0])
    return ",".join(hosts)


def read_config(file, settings, made):
    """Sets those flags of the file that the command line does not have. The file may also have
    Horovod's sections."""
    try:
        import yaml
    except ImportError:
        made.error("--config-file needs yaml for Python (Debian: python3-yaml)")

    def take(table):
        for key, value in table.items():
            name = str(key).replace("-", "_")
            if isinstance(value, dict):
                take({f"{name}_{inner}" if name in _SECTIONS else inner: v
                      for inner, v in value.items()})
            else:
                given = getattr(settings, name, None)
                if given is None or given is False:
                    setattr(settings, name, value)

    with open(file) as text:
        take(yaml.safe_load(text) or {})


_SECTIONS = ("timeline", "stall_check")  # the names of these sections are part of the flags in them


def environment_of(settings):
    """Returns the variables of Tutti that horovodrun's flags stand for."""
    named = {
        "TUTTI_CONNECT_TIMEOUT": settings.start_timeout,
        "TUTTI_CACHE_CAPACITY": 0 if settings.disable_cache else settings.cache_capacity,
        "TUTTI_STALL_WARNING": settings.stall_check_warning_time_seconds,
        "TUTTI_OPERATION_TIMEOUT": settings.stall_check_shutdown_time_seconds or None,
    }
    if settings.no_stall_check:
        named["TUTTI_STALL_WARNING"] = 10**7  # the longest time, in seconds
    if settings.fusion_threshold_mb is not None:
        named["TUTTI_FUSION_BYTES"] = int(settings.fusion_threshold_mb * 2**20)
    if settings.log_level is not None:
        level = {"TRACE": "debug", "FATAL": "error"}.get(settings.log_level)
        named["TUTTI_LOG"] = level or settings.log_level.lower()
    return {name: str(value) for name, value in named.items() if value is not None}


def arguments_of(settings, made):
    """Returns the arguments of tutti-run."""
    given = []
    if settings.np is not None:
        given += ["-np", str(settings.np)]
    hosts = hosts_in(settings.hostfile) if settings.hostfile else settings.hosts
    if hosts:
        given += ["--hosts", hosts]
    if settings.ssh_port or settings.ssh_identity_file:
        shell = "ssh -o BatchMode=yes"
        shell += f" -p {settings.ssh_port}" if settings.ssh_port else ""
        shell += f" -i {settings.ssh_identity_file}" if settings.ssh_identity_file else ""
        given += ["--rsh", shell]
    if settings.network_interfaces:
        given += ["--interface", settings.network_interfaces.split(",")[0]]
    if settings.timeline_filename:
        given += ["--timeline", settings.timeline_filename]
    if settings.output_filename:
        given += ["--output", settings.output_filename]
    if settings.min_np is not None:
        given.append("--keep-going")
    for name, value in environment_of(settings).items():
        given += ["--env", f"{name}={value}"]
    command = settings.command[1:] if settings.command[:1] == ["--"] else settings.command
    if not command:
        made.error("no command to run")
    if settings.np is None and not hosts:
        made.error("-np is needed, or hosts with their slots")
    return given + command


_CANNOT = {
    "host_discovery_script": "hosts are not discovered while the job runs: give -H or --hostfile",
    "slots_per_host": "hosts are not discovered while the job runs: give -H a:2,b:2",
    "max_np": "no rank is added while the job runs: give -np",
    "reset_limit": "ranks are only lost, so resets end by themselves",
    "elastic_timeout": "nothing waits for new ranks: leave it out",
    "autotune": "there is nothing to tune by trial: leave it out",
    "jsrun": "jsrun is not known: use -H, or start the ranks by mpirun or srun",
    "tcp": "set TUTTI_BACKEND=tcp",
}


def main(arguments=None):
    made = parser()
    settings = made.parse_args(arguments)
    if settings.version:
        from . import __version__

        print(f"tutti {__version__}")
        return
    if settings.check_build:
        print("Tutti for PyTorch: import tutti.torch as hvd")
        print("Its backends on this machine, and why not: tutti-doctor")
        return
    if settings.config_file:
        read_config(settings.config_file, settings, made)
    for name, reason in _CANNOT.items():
        if getattr(settings, name):
            made.error(f"--{name.replace('_', '-')}: {reason}")
    if settings.cycle_time_ms is not None or settings.timeline_mark_cycles:
        print("horovodrun: Tutti has no cycles; their options do nothing", file=sys.stderr)
    program = run.find()
    if program is None:
        sys.exit("horovodrun: there is no tutti-run, neither in this package nor on the PATH")
    command = ["tutti-run", *arguments_of(settings, made)]
    if settings.verbose:
        print(" ".join(command), file=sys.stderr, flush=True)
    os.execv(program, command)


if __name__ == "__main__":
    main()
