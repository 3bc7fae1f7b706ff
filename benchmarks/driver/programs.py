"""Every command that a figure may need, with all words of its command line."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from statistics import median

from .command import Command, Process
from .network import ADDRESSES

SETS = ("resnet50", "gpt2", "small1000")
# In shared memory, every collective except the last has a blocking form.
KINDS = ("allgather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "alltoall",
         "sendrecv")
GLOO_KINDS = ("allgather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "alltoall")

# With these settings glibc never makes a mapping for one allocation and never returns a page to the
# system. Large temporary buffers keep their pages, which makes every MPI faster.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
NO_CMA = ("--mca", "btl_vader_single_copy_mechanism", "none")
HAN = ("--mca", "coll_han_priority", "100")
RABENSEIFNER = ("--mca", "coll_tuned_use_dynamic_rules", "1",
                "--mca", "coll_tuned_allreduce_algorithm", "6")
OPENMPI = {
    "shipped": ((), {}),
    "no_cma": (NO_CMA, {}),
    "han": (HAN, {}),
    "rabenseifner": (RABENSEIFNER, {}),
    "malloc": ((), MALLOC),
    "malloc+han": (HAN, MALLOC),
    "malloc+rabenseifner": (RABENSEIFNER, MALLOC),
}
MPICH = {"shipped": {}, "malloc": MALLOC}
CUBIC = "cubic"
STORE_PORT = 29_500  # this namespace belongs to the run, so no other program listens on the port

K, M = 1 << 10, 1 << 20


class Scope:
    """The amount of measurement. --quick leaves out sizes and repetitions, but no figure."""

    def __init__(self, quick):
        self.quick = quick
        self.small = [4, 64, K, 16 * K] if quick else [4 * 4**i for i in range(8)]
        self.medium = [256 * K, 4 * M] if quick else [256 * K, M, 4 * M]
        self.large = [16 * M, 64 * M] if quick else [16 * M, 64 * M, 256 * M]
        self.tcp = [M, 16 * M] if quick else [M, 4 * M, 16 * M, 64 * M]
        self.tcp_latency = [4, 4 * K] if quick else [4, 64, 512, 4 * K]
        self.four_large = [M, 16 * M] if quick else [M, 4 * M, 16 * M, 64 * M]
        self.shaped = [4 * M]
        self.kinds_small, self.kinds_large = ([4 * K], [M]) if quick else ([4 * K, 64 * K], [M, 16 * M])
        self.kinds_rounds = 1 if quick else 3
        self.torch_steps, self.torch_calls = (5, 500) if quick else (15, 2000)
        self.torch_rounds = 1 if quick else 3
        self.repetitions = 2  # in each round; the figure is the median over many rounds
        self.steady_steps = {"names": 1000 if quick else 10_000, "true": 20 if quick else 200}
        # Sizes below a bucket's are left out, because agreeing on such a call takes longer than the
        # call.
        self.beside = [4 * M, 16 * M] if quick else [4 * M, 16 * M, 64 * M]
        self.beside_pairs = 7 if quick else 31
        # A buffer's address affects the speed for the whole life of a process, so several processes
        # measure it.
        self.limit_pairs, self.limit_rounds = (5, 1) if quick else (9, 5)
        self.stall_calls = 10_000 if quick else 100_000
        self.latency_calls = 5_000 if quick else 20_000
        self.create_jobs = 5 if quick else 11


def sizes_text(sizes):
    return ",".join(str(size) for size in sizes)


def parse_demo(text):
    """Returns a row with the mean share of training that waited for communication."""
    shares = [float(share) for share in re.findall(r"exposed (\d+(?:\.\d+)?) %", text)]
    if not shares:
        return []
    return [{"program": "tutti", "case": "demo", "way": "mnist", "in_place": True, "set": "",
             "bytes": 0, "dtype": "f32", "op": "average", "ranks": 2, "transport": "shm",
             "time_us": 0, "wrong": 0,
             "extra": {"exposed_percent": sum(shares) / len(shares)}}]


# Work of each rank: images, or sequences of this length in tokens.
TRAINING = {"resnet50": {"batch": 4}, "gpt2": {"batch": 1, "length": 256}}


def parse_training(model, ranks):
    """Returns a parser. Its row has the median time of all steps but the first, and the share that
    waited for data."""
    def parse(text):
        # If several ranks write, tutti-run puts "[rank] " before each line.
        steps = [float(ms) for step, ms in re.findall(r"^(?:\[0\] )?step (\d+) .* (\S+) ms", text, re.M)
                 if step != "0"]
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", text)]
        exposed = re.search(r"(\S+) (?:images|tokens)/s, exposed (\S+) %", text)
        if not steps or not exposed:
            return []
        return [{"program": "tutti", "case": "training", "way": model, "in_place": True, "set": "",
                 "bytes": 0, "dtype": "f32", "op": "sum", "ranks": ranks, "transport": "shm",
                 "time_us": median(steps) * 1e3, "wrong": int(not losses[-1] < losses[0]),
                 "extra": {"per_second": float(exposed[1]), "exposed_percent": float(exposed[2])}}]
    return parse


def parse_gpt2(text):
    """Returns a row with the median step time, and by how much a save in the background delays a
    step."""
    steps = [float(time) for step, time in re.findall(r"step (\d+) .* ([0-9.]+) ms", text) if int(step) >= 3]
    ranks = re.search(r"(\d+) ranks? \((\w+)\)", text)
    held_up = re.search(r"held its step up by [0-9.]+ ms, ([0-9.]+) %", text)
    if not steps or not ranks:
        return []
    return [{"program": "tutti", "case": "gpt2", "way": "zero3", "in_place": True, "set": "",
             "bytes": 0, "dtype": "f32", "op": "sum", "ranks": int(ranks[1]), "transport": ranks[2],
             "time_us": median(steps) * 1e3, "wrong": 0,
             "extra": {"save_percent": float(held_up[1])} if held_up else {}}]


def parse_ctest(text):
    found = re.search(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", text)
    if not found:
        return []
    return [{"program": "tutti", "case": "seeds", "way": "ctest", "in_place": True, "set": "",
             "bytes": 0, "dtype": "f32", "op": "sum", "ranks": 0, "transport": "", "time_us": 0,
             "wrong": 0, "extra": {"failed": int(found[2]), "tests": int(found[3])}}]


def python_with(module):
    """Returns the first Python that has a module. Debian's packages are only in the system's
    Python."""
    for python in ("python3", "/usr/bin/python3"):
        ask = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec('{module}'))"
        try:
            done = subprocess.run((python, "-c", ask), capture_output=True, timeout=20, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return ""


class Programs:
    def __init__(self, root, build, scope, network, python=""):
        self.root, self.build, self.scope, self.network = Path(root), Path(build), scope, network
        self.bench = self.build / "tools" / "tutti-bench"
        self.folder = self.build / "benchmarks"
        missing = self.folder / "missing.txt"
        lines = missing.read_text().splitlines() if missing.exists() else []
        self.missing = dict(line.split(": ", 1) for line in lines if ": " in line)
        self.debians_python = python_with("torch")
        self.python = python or self.debians_python
        self.newest_python = Path(python or self.root / "build" / "torch" / "environment" / "bin" / "python")
        self.commands = []
        self._allreduce_in_shared_memory()
        self._gradients()
        self._torch()
        self._four_ranks()
        self._kinds()
        self._latency()
        self._tcp()
        self._beside_libraries()
        self._steady()
        self._kernels_and_more()
        self._training()
        self._sharded()

    def _method(self):
        return ("--repetitions", str(self.scope.repetitions))

    def _add(self, program, topic, group, argv, env=None, variant="", **more):
        processes = more.pop("processes", None) or (Process(tuple(map(str, argv)), env or {}),)
        key = ".".join(word for word in (topic, group, program, variant) if word)
        fault = more.pop("fault", "") or self._fault(program)
        self.commands.append(Command(key, program, topic, group, processes, variant, fault=fault,
                                     **more))

    def _fault(self, program):
        binary = {"tutti": self.bench, "limit": self.folder / "tutti-limits"}.get(
            program, self.folder / f"peer-{program}")
        if program == "torch":
            return "" if self.python else "torch is not installed (Debian: python3-torch)"
        if not binary.exists():
            return self.missing.get(program, f"{binary.name} is not built")
        launcher = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich"}.get(program)
        if launcher and not shutil.which(launcher):
            return f"{launcher} is not installed"
        return ""

    def _tutti(self, topic, group, case, words, ranks=2, backend="shm", variant="", **more):
        argv = (self.bench, case, "--ranks", ranks, "--backend", backend, "--pin", "--json", "-",
                *words)
        self._add("tutti", topic, group, argv, variant=variant, **more)

    def _openmpi(self, topic, group, variant, ranks, words, **more):
        settings, env = OPENMPI[variant]
        root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        crowd = ("--oversubscribe",) if ranks > 2 else ()
        exports = tuple(word for name in env for word in ("-x", name))
        argv = ("mpirun.openmpi", *root, *crowd, "-np", ranks, "--bind-to", "none", *settings,
                *exports, self.folder / "peer-openmpi", *words, "--variant", variant,
                *self._method())
        self._add("openmpi", topic, group, argv, env, variant, ways_flag=self._mpi_ways(words),
                  **more)

    def _mpich(self, topic, group, variant, ranks, words, **more):
        argv = ("mpiexec.mpich", "-np", ranks, "-bind-to", "none", self.folder / "peer-mpich",
                *words, "--variant", variant, *self._method())
        self._add("mpich", topic, group, argv, MPICH[variant], variant,
                  ways_flag=self._mpi_ways(words), **more)

    @staticmethod
    def _mpi_ways(words):
        return "--way" if words[0] == "gradients" else ""

    def _congestion(self, name):
        if not name:
            return {}
        return {"LD_PRELOAD": str(self.folder / "libcongestion.so"), "BENCH_TCP_CONGESTION": name}

    def _gloo(self, topic, group, ranks, words, congestion="", **more):
        variant = congestion or "shipped"
        argv = (self.folder / "peer-gloo", *words, "--ranks", ranks, "--variant", variant,
                "--cell-ms", 150, *self._method())
        self._add("gloo", topic, group, argv, self._congestion(congestion), variant,
                  ways_flag="--algorithm", **more)

    def _limit(self, topic, group, words, variant="", **more):
        self._add("limit", topic, group, (self.folder / "tutti-limits", *words, *self._method()),
                  variant=variant, **more)

    def _allreduce_in_shared_memory(self):
        groups = {"small": self.scope.small, "medium": self.scope.medium, "large": self.scope.large}
        for group, sizes in groups.items():
            words = ("allreduce", "--place", "in", "--bytes", sizes_text(sizes))
            ours = words[1:] + self._method()
            self._limit("shm2", group, ("mapped_add", "--bytes", sizes_text(sizes)))
            self._tutti("shm2", group, "allreduce", ours + ("--way", "blocking"),
                        variant="blocking")
            self._tutti("shm2", group, "allreduce", ours + ("--way", "arena_blocking"),
                        variant="arena_blocking")
            if group == "small":
                for way in ("arena", "named", "vector"):
                    self._tutti("shm2", group, "allreduce", ours + ("--way", way), variant=way)
            for variant in OPENMPI:
                if group != "small" or "malloc" not in variant:
                    self._openmpi("shm2", group, variant, 2, words)
            for variant in MPICH:
                if group != "small" or variant != "malloc":
                    self._mpich("shm2", group, variant, 2, words)
            self._gloo("shm2", group, 2, ("allreduce", "--bytes", sizes_text(sizes)))

    def _gradients(self):
        for name in SETS:
            path = self.root / "benchmarks" / "data" / "gradients" / f"{name}.csv"
            ways = ("named", "arena") + (("declared", "grouped") if name == "small1000" else ())
            fault = "" if path.exists() else f"{path.name} is not in benchmarks/data/gradients"
            for way in ways:
                self._tutti("gradients", name, "gradients",
                            ("--set", name, "--way", way) + self._method(), variant=way)
            words = ("gradients", "--set", path)
            for variant in ("shipped", "malloc"):
                self._openmpi("gradients", name, variant, 2, words, fault=fault)
                self._mpich("gradients", name, variant, 2, words, fault=fault)
            if name == "small1000":
                continue
            ddp = (self.python or "python3", self.root / "benchmarks" / "peers" / "ddp.py", "--set", path,
                   "--steps", 3)
            self._add("torch", "gradients", name, ddp, {}, "shipped", fault=fault)
            if not self.scope.quick:
                self._add("torch", "gradients", name, ddp + ("--variant", CUBIC),
                          self._congestion(CUBIC), CUBIC, fault=fault)

    def _torch(self):
        """Measures DistributedDataParallel over Gloo and over Tutti, in turns within one
        program."""
        package = self.build / "python" / "tutti" / "_native.abi3.so"
        fault = "" if package.exists() else "the Python package is not built (Debian: python3-dev)"
        for name in SETS:
            path = self.root / "benchmarks" / "data" / "gradients" / f"{name}.csv"
            argv = (self.python or "python3", self.root / "benchmarks" / "peers" / "ddp.py", "--set",
                    path, "--way", "gloo,tutti,hook,own,nothing,idle", "--steps", self.scope.torch_steps)
            if name == "small1000":
                argv += ("--calls", self.scope.torch_calls)
            self._add("torch", "torch", name, argv, {"PYTHONPATH": str(self.build / "python")},
                      fault=fault, rounds=self.scope.torch_rounds, timeout_s=180)
            self._add("libtorch", "torch", name, (self.folder / "peer-libtorch", "gradients", "--set", path,
                                                  "--steps", self.scope.torch_steps),
                      rounds=self.scope.torch_rounds, timeout_s=180)

    def _four_ranks(self):
        groups = {"small": self.scope.small, "large": self.scope.four_large}
        for group, sizes in groups.items():
            words = ("allreduce", "--place", "in", "--bytes", sizes_text(sizes))
            self._tutti("shm4", group, "allreduce",
                        words[1:] + ("--way", "blocking") + self._method(), ranks=4)
            variants = ("shipped", "no_cma", "han", "rabenseifner")
            if group == "large":
                variants = ("shipped", "han", "rabenseifner", "malloc", "malloc+han",
                            "malloc+rabenseifner")
            for variant in variants:
                self._openmpi("shm4", group, variant, 4, words)
            # MPICH does not yield its core, so here a call takes milliseconds. One repetition shows
            # that.
            self._mpich("shm4", group, "shipped", 4, words + ("--cell-ms", "50"))
            self._gloo("shm4", group, 4, ("allreduce", "--bytes", sizes_text(sizes),
                                          "--algorithm", "halving_doubling,ring_chunked"))

    def _kinds(self):
        """Measures each collective by each kind of call, and MPI's. For allreduce it measures only
        the named calls."""
        sizes = sizes_text(self.scope.kinds_small + self.scope.kinds_large)
        rounds = self.scope.kinds_rounds
        for ranks in (2, 4):
            for kind in ("allreduce",) + KINDS:
                group = f"{kind}.{ranks}"
                # The other collectives run either in place or out of place, so they have no choice.
                place = {"allreduce": ("--place", "in"), "allgather": ("--place", "out"),
                         "reduce": ("--place", "out")}.get(kind, ())
                words = place + ("--bytes", sizes, "--repetition-ms", 10) + self._method()
                ways = ("named",) if kind == "allreduce" else ("named", "declared", "replayed", "region")
                if kind != "allreduce":
                    ways += ("blocking",)
                for way in ways:
                    self._tutti("kinds", group, kind, words + ("--way", way), ranks=ranks,
                                variant=way, rounds=rounds)
                if kind == "allreduce":
                    continue
                theirs = (kind, "--bytes", sizes, "--repetition-ms", "10", "--cell-ms",
                          "500" if ranks == 2 else "50")
                self._openmpi("kinds", group, "shipped", ranks, theirs, rounds=rounds)
                self._openmpi("kinds", group, "no_cma", ranks, theirs, rounds=rounds)
                self._mpich("kinds", group, "shipped", ranks, theirs, rounds=rounds)
                if kind in GLOO_KINDS:
                    self._tutti("kinds_tcp", group, kind,
                                place + ("--bytes", "4M", "--way", "blocking") + self._method(),
                                ranks=ranks, backend="tcp", rounds=rounds)
                    self._gloo("kinds_tcp", group, ranks, (kind, "--bytes", "4M"), rounds=rounds)

    def _latency(self):
        self._tutti("latency", "", "latency", ("--calls", self.scope.latency_calls), variant="async")
        self._tutti("create", "", "create", ("--repetitions", self.scope.create_jobs))

    def _tcp(self):
        scope = self.scope
        for ranks in (2, 4):
            # With 4 ranks Gloo's new algorithms take seconds where its old ones take milliseconds.
            algorithms = "all" if ranks == 2 else "halving_doubling,ring_chunked"
            self._tcp_group("loopback", ranks, scope.tcp, algorithms)
            self._tcp_group("namespaces", ranks, scope.tcp, algorithms)
            sizes = sizes_text(scope.tcp_latency)
            self._tutti("tcp_latency", str(ranks), "allreduce",
                        ("--place", "in", "--bytes", sizes, "--way", "blocking") + self._method(),
                        ranks=ranks, backend="tcp")
            self._gloo("tcp_latency", str(ranks), ranks,
                       ("allreduce", "--bytes", sizes, "--algorithm", algorithms))
        self._tutti("stall", "", "latency", ("--calls", scope.stall_calls),
                    backend="tcp", rounds=1, timeout_s=300)
        self._beside_sockets("shaped", 2, scope.shaped)

    def _tcp_group(self, place, ranks, sizes, algorithms):
        topic, group, bytes_ = f"tcp_{place}", str(ranks), sizes_text(sizes)
        # A repetition must have several calls, because the ranks leave a barrier up to a time slice
        # apart.
        long = ("--repetition-ms", 50)
        ours = ("--place", "in", "--bytes", bytes_, "--way", "blocking", *long) + self._method()
        where, more = self._where(place, ranks)
        if place == "loopback":
            self._tutti(topic, group, "allreduce", ours, ranks=ranks, backend="tcp")
        else:
            self._add("tutti", topic, group, (),
                      processes=self._ranks_in_namespaces(ours, *self._sides(ranks)), **more)
        words = ("allreduce", "--bytes", bytes_, "--algorithm", algorithms, *long, *where)
        self._gloo(topic, group, ranks, words, **more)
        self._gloo(topic, group, ranks, words, CUBIC, **more)
        self._beside_sockets(place, ranks, sizes)

    def _beside_sockets(self, place, ranks, sizes):
        """Measures plain sockets, with one socket and the congestion control that Tutti also
        uses."""
        where, more = self._where(place, ranks)
        argv = (self.folder / "raw-sockets", "allreduce", "--ranks", ranks, "--bytes",
                sizes_text(sizes), "--congestion", CUBIC, "--repetition-ms", 50, "--pairs",
                self.scope.limit_pairs, *where)
        self._add("tutti", "sockets.raw", f"{place}.{ranks}", argv, rounds=self.scope.limit_rounds,
                  timeout_s=180, **more)

    def _sides(self, ranks):
        sides = [rank * 2 // ranks for rank in range(ranks)]
        return ([self.network.names[side] for side in sides], [ADDRESSES[side] for side in sides])

    def _where(self, place, ranks):
        """Returns the arguments that place the ranks of a program, and what must be set up
        first."""
        if place == "loopback":
            return (), {}
        names, hosts = self._sides(ranks)
        return (("--namespaces", ",".join(names), "--hosts", ",".join(hosts)),
                {"network": place, "fault": self.network.fault()})

    def _ranks_in_namespaces(self, words, names, hosts):
        """Starts tutti-bench's ranks one by one, because no launcher starts ranks in namespaces."""
        processes = []
        for rank, (name, host) in enumerate(zip(names, hosts)):
            env = {"TUTTI_RANK": str(rank), "TUTTI_SIZE": str(len(names)),
                   "TUTTI_STORE": f"tcp://{hosts[0]}:{STORE_PORT}", "TUTTI_SERVE_STORE": "1",
                   "TUTTI_LOCAL_RANK": str(rank), "TUTTI_LOCAL_SIZE": str(len(names)),
                   "TUTTI_INTERFACE": host, "TUTTI_TCP_CONGESTION": CUBIC,
                   "TUTTI_SECRET": self.network.name}
            argv = ("ip", "netns", "exec", name, self.bench, "allreduce", "--backend", "tcp",
                    "--pin", "--json", "-", *words)
            processes.append(Process(tuple(map(str, argv)), env))
        return tuple(processes)

    def _beside_libraries(self):
        """Measures Tutti and the library under its backend in one program, which takes pairs
        itself."""
        pairs = ("--bytes", sizes_text(self.scope.beside), "--pairs", self.scope.beside_pairs)
        ways = {"shm": "sysv,posix,self", "tcp": "tcp,self"}

        def add(library, topic, group, words, env=None):
            binary = self.folder / f"raw-{library}"
            fault = "" if binary.exists() else self.missing.get(library, f"{binary.name} is not built")
            self._add("tutti", topic, group, (binary, *words, *pairs), env, rounds=1, timeout_s=180,
                      fault=fault)

        add("gloo", "gloo.raw", "allreduce", ("allreduce",))
        for over, transports in ways.items():
            for case in ("broadcast", "sendrecv", "allreduce"):
                way = ("--way", "arena") if case == "allreduce" else ()
                add("ucx", "ucx.raw", f"{case}.{over}", (case, "--variant", over, *way),
                    {"UCX_TLS": transports})

    def _steady(self):
        for backend in ("shm", "tcp"):
            for ranks in (2, 4):
                for kind, steps in self.scope.steady_steps.items():
                    short = ("--elements", 64) if kind == "names" else ()
                    self._tutti("steady", f"{kind}.{ranks}.{backend}", "steady",
                                ("--set", "resnet50", "--steps", steps, *short), ranks=ranks,
                                backend=backend, rounds=1, timeout_s=300)
        self._add("tutti", "seeds", "",
                  ("ctest", "--test-dir", self.build, "-R", "^PlanFuzz.AThousandSeeds$", "--timeout",
                   "280"), rounds=1, timeout_s=300, parse=parse_ctest)

    def _sharded(self):
        """Measures ZeRO 1 and an allreduce, then ZeRO 3 and torch's FSDP2, and ZeRO 3 with
        saves."""
        for ranks in (2, 4):
            self._tutti("sharded", str(ranks), "sharded", ("--set", "resnet50") + self._method(),
                        ranks=ranks, backend="tcp")
        gpt2 = self.build / "examples" / "gpt2"
        fault = "" if gpt2.exists() else "examples/gpt2 is not built"
        run = (self.build / "tools" / "tutti-run", "-np", 2, "--bind-to", "core", gpt2, "--zero", 3)
        self._add("tutti", "zero3", "", run + ("--steps", 60), {"TUTTI_BACKEND": "tcp"}, fault=fault, parse=parse_gpt2)
        checkpoints = self.folder / "checkpoints"
        self._add("tutti", "save", "", run + ("--steps", 200, "--checkpoints", checkpoints, "--save-every", 100),
                  {"TUTTI_BACKEND": "tcp"}, fault=fault, parse=parse_gpt2)
        self._add("torch", "zero3", "", (self.newest_python, self.root / "benchmarks" / "peers" / "fsdp.py"),
                  fault="" if self.newest_python.exists() else "no torch with FSDP2 (./dev test --torch gets one)",
                  timeout_s=180)

    def _kernels_and_more(self):
        for cores in (1, 2):
            self._add("tutti", "kernels", str(cores),
                      (self.folder / "raw-memory", "sums", "--ranks", cores, "--bytes", "256M",
                       "--pairs", self.scope.limit_pairs), rounds=self.scope.limit_rounds,
                      timeout_s=180)
        self._tutti("kernels", "l2", "kernels", ("--bytes", "128K", "--warmup", 1) + self._method(),
                    ranks=1)
        self._tutti("optimizer", "", "fused_optimizer",
                    ("--set", "resnet50") + self._method())
        demo = (self.build / "tools" / "tutti-run", "-np", 2, self.build / "examples" / "mnist")
        there = (self.build / "examples" / "mnist").exists()
        self._add("tutti", "demo", "", demo, rounds=1 if self.scope.quick else 5,
                  parse=parse_demo, fault="" if there else "examples/mnist is not built")

    def _training(self):
        """Measures whole training steps of Tutti and of torch, with each rank on its own core.
        Debian's torch runs only its first step, because its step of GPT-2 takes a minute and a
        half."""
        steps = 2
        rounds = 1 if self.scope.quick else 3
        for model, shape in TRAINING.items():
            for ranks in (1, 2):
                group = f"{model}.{ranks}"
                example, words = ("resnet_synthetic", ()) if model == "resnet50" else (
                    "gpt2", ("--model", "124M", "--length", shape["length"]))
                binary = self.build / "examples" / example
                ours = (self.build / "tools" / "tutti-run", "-np", ranks, "--bind-to", "core", binary,
                        *words, "--steps", steps + 1, "--batch", ranks * shape["batch"])
                self._add("tutti", "training", group, ours, rounds=rounds, timeout_s=280,
                          parse=parse_training(model, ranks),
                          fault="" if binary.exists() else f"examples/{example} is not built")
                theirs = (self.root / "benchmarks" / "peers" / "train.py", "--model", model, "--ranks",
                          ranks, "--batch", shape["batch"])
                theirs += ("--length", shape["length"]) if "length" in shape else ()
                one_thread = {"OMP_NUM_THREADS": "1"}
                self._add("torch", "training", group,
                          (self.debians_python or "python3", *theirs, "--warmup", 0, "--steps", 1,
                           "--variant", "debian"), one_thread, "debian", rounds=1, timeout_s=280)
                newer = (self.newest_python, *theirs, "--steps", steps, "--variant")
                there = self.newest_python.exists()
                fault = "" if there else "no newer torch: ./dev test --torch gets one, --torch names one"
                self._add("torch", "training", group, newer + ("newest",), one_thread, "newest",
                          rounds=rounds, timeout_s=280, fault=fault)
                if model == "resnet50":
                    self._add("torch", "training", group, newer + ("channels_last", "--channels-last"),
                              one_thread, "channels_last", rounds=rounds, timeout_s=280, fault=fault)
