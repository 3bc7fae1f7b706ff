"""The figures that are promised, as data. Each says what is compared, the target and the floor."""

from dataclasses import dataclass

from .programs import GLOO_KINDS, KINDS, SETS

MPI = ("openmpi", "mpich")
PEERS = ("openmpi", "mpich", "gloo")
GLOO = ("gloo",)
TORCH = ("torch",)


@dataclass(frozen=True)
class Pick:
    """Selects rows by the topic and group of their command and by their own fields. A field may be
    a tuple of allowed values. A name with a dot is a field in `extra`."""

    topic: str
    programs: tuple = ("tutti",)
    group: str = None
    variants: tuple = None
    fields: tuple = ()  # (name, value) pairs

    def takes_command(self, command):
        return (command.topic == self.topic and command.program in self.programs and
                self.group in (None, command.group) and
                (self.variants is None or command.variant in self.variants))


SLOWDOWN = "slowdown"  # our time over the best peer's
SPEEDUP = "speedup"  # the best peer's time over ours
SHARE = "share"  # the limit's time over ours
VALUE = "value"  # a field of our row
BESIDE = "beside"  # a ratio in our row, of pairs that were measured inside one program
FAULTS = "faults"  # number of things that must not happen
UNITS = {SLOWDOWN: "x the peer's time", SPEEDUP: "x faster",
         SHARE: "of the limit", FAULTS: "faults", BESIDE: "of the library's speed"}


@dataclass(frozen=True)
class Figure:
    name: str
    about: str
    kind: str
    target: float
    floor: float
    ours: Pick
    peers: Pick = None
    limit: Pick = None
    points: tuple = ({},)  # fields by point; the worst point is the figure's value
    field: str = "time_us"  # field of our row, for VALUE
    scale: float = 1
    unit: str = ""
    faults: tuple = ()  # (field, right value) pairs, for FAULTS

    @property
    def better(self):
        return "lower" if self.kind in (SLOWDOWN, VALUE, FAULTS) else "higher"

    @property
    def shown_unit(self):
        return self.unit or UNITS[self.kind]

    def picks(self):
        return [pick for pick in (self.ours, self.peers, self.limit) if pick]


def pick(topic, programs=("tutti",), group=None, variants=None, **fields):
    return Pick(topic, programs, group, variants, tuple(fields.items()))


def at_bytes(sizes):
    return tuple({"bytes": size} for size in sizes)


def shared_memory(scope):
    both = scope.small + scope.medium
    ours = pick("shm2", case="allreduce", way="blocking", in_place=True)
    arena = pick("shm2", case="allreduce", way="arena_blocking", in_place=True)
    step, named, vector = (pick("shm2", case="allreduce", way=way, in_place=True)
                           for way in ("arena", "named", "vector"))
    peers = pick("shm2", PEERS, case="allreduce", in_place=True)
    limit = pick("shm2", ("limit",), case="mapped_add")
    from_16k = [size for size in both if size >= 16 << 10]
    four = pick("shm4", case="allreduce", way="blocking")
    four_peers = pick("shm4", PEERS, case="allreduce")
    return [
        Figure("shm2.private.small", "Blocking allreduce, 2 processes, private memory, to 4 MiB",
               SLOWDOWN, 1.10, 1.3, ours, peers, limit, at_bytes(both)),
        Figure("shm2.private.large", "The same from 16 MiB",
               SPEEDUP, 1.4, 1.15, ours, peers, limit, at_bytes(scope.large)),
        Figure("shm2.arena.small", "From GradientArena, 16 KiB to 4 MiB",
               SPEEDUP, 4, 2.5, arena, peers, limit, at_bytes(from_16k)),
        Figure("shm2.arena.large", "From GradientArena, from 16 MiB",
               SPEEDUP, 2.5, 1.8, arena, peers, limit, at_bytes(scope.large)),
        Figure("shm2.arena.limit", "From GradientArena, of two processes that add in mapped memory",
               SHARE, 0.80, 0.60, arena, None, limit, at_bytes(from_16k + scope.large)),
        Figure("shm2.arena.step", "One array of 64 KiB, ready() and wait(): a named allreduce of ours",
               SLOWDOWN, 1.5, 2.5, step, named, None, at_bytes(scope.small[-1:])),
        Figure("shm2.vector", "A blocking call of 4 bytes on a vector: the same on a view",
               SLOWDOWN, 1.25, 1.6, vector, ours, None, at_bytes([4])),
        Figure("shm4.small", "4 ranks on 2 cores, to 64 KiB",
               SLOWDOWN, 1.10, 1.3, four, four_peers, None, at_bytes(scope.small)),
        Figure("shm4.large", "4 ranks on 2 cores, from 1 MiB",
               SPEEDUP, 1.5, 1.1, four, four_peers, None, at_bytes(scope.four_large)),
    ]


def gradient_sets():
    figures = []
    wanted = {  # targets and floors: private memory against MPI and DDP, then an arena against both
        "resnet50": ((1.5, 1.2), (3, 3), (3, 2), (6, 4)),
        "gpt2": ((1.4, 1.15), (3, 3), (2.3, 1.7), (5, 4)),
    }
    for name, (private, private_ddp, arena, arena_ddp) in wanted.items():
        mpi = pick("gradients", MPI, name)
        ddp = pick("gradients", TORCH, name, way="ddp")
        for words, way, against_mpi, against_ddp in (("private", "named", private, private_ddp),
                                                     ("arena", "arena", arena, arena_ddp)):
            ours = pick("gradients", ("tutti",), name, way=way)
            figures += [
                Figure(f"gradients.{name}.{words}", f"{name}, {words}: best of MPI's ways",
                       SPEEDUP, *against_mpi, ours, mpi),
                Figure(f"gradients.{name}.{words}.ddp", f"{name}, {words}: DDP's communication",
                       SPEEDUP, *against_ddp, ours, ddp),
            ]
    small = "small1000"
    by_hand = pick("gradients", MPI, small, way="fused")
    handles = pick("gradients", ("tutti",), small, way=("declared", "grouped"))
    named = pick("gradients", ("tutti",), small, way="named")
    arena = pick("gradients", ("tutti",), small, way="arena")
    return figures + [
        Figure("gradients.small1000.handles", "1,000 x 1 KB, grouped or declared: MPI fused by hand",
               SLOWDOWN, 1.1, 1.5, handles, by_hand),
        Figure("gradients.small1000.named", "1,000 x 1 KB, separate named calls: MPI fused by hand",
               SLOWDOWN, 2, 3, named, by_hand),
        Figure("gradients.small1000.arena", "1,000 x 1 KB, arena: MPI fused by hand",
               SPEEDUP, 2, 1.3, arena, by_hand),
        Figure("gradients.small1000.cpu", "Engine's CPU time for each tensor", VALUE, 0.15, 0.5,
               handles, field="extra.engine_cpu_us_per_tensor", unit="us"),
    ]


def under_torch():
    figures = []
    # For torch's own wrappers, this is the time added to that of a group that exchanges nothing.
    # For Tutti's wrapper, it is all added time.
    exchange = "what its exchange adds to a backward pass"
    ways = {"tutti": (f"DistributedDataParallel of torch: {exchange}", 0.2, "extra.exchange_of_gloo"),
            "hook": (f"the same with ddp_hook: {exchange}", 0.2, "extra.exchange_of_gloo"),
            "own": ("tutti.torch.DistributedDataParallel: what it adds to a backward pass", 0.125,
                    "extra.of_gloo")}
    for name in SETS:
        for way, (about, target, field) in ways.items():
            ours = pick("torch", TORCH, name, case="gradients", way=way)
            figures.append(Figure(f"torch.{name}.{way}", f"{name}, {about}", VALUE, target, 0.5, ours,
                                  field=field, unit="of gloo's"))
    ddp = pick("torch", TORCH, "resnet50", case="gradients", way="ddp")
    return figures + [
        Figure("torch.resnet50.libtorch", "resnet50, LibTorch in C++: DDP over gloo adds to a backward pass",
               SPEEDUP, 8, 2, pick("torch", ("libtorch",), "resnet50", way="libtorch"), ddp),
        Figure("torch.call", "torch's all_reduce of 4 bytes, blocking", VALUE, 30, 60,
               pick("torch", TORCH, "small1000", case="call", way="tutti"), unit="us")]


def kinds(scope):
    figures = []
    small, large = at_bytes(scope.kinds_small), at_bytes(scope.kinds_large)
    for ranks in (2, 4):
        named_allreduce = pick("kinds", ("tutti",), f"allreduce.{ranks}", way="named")
        for kind in KINDS:
            group = f"{kind}.{ranks}"
            peers = pick("kinds", MPI, group)
            ours = pick("kinds", ("tutti",), group, way="blocking")
            figures += [
                Figure(f"kinds.{kind}.{ranks}.small", f"{kind}, {ranks} ranks, to 64 KiB",
                       SLOWDOWN, 1.0, 3, ours, peers, None, small),
                Figure(f"kinds.{kind}.{ranks}.large", f"{kind}, {ranks} ranks, from 1 MiB",
                       SPEEDUP, 1.5, 0.33, ours, peers, None, large),
                Figure(f"kinds.{kind}.{ranks}.region",
                       f"{kind} in memory of allocate(), {ranks} ranks, from 1 MiB",
                       SPEEDUP, 3, 0.33, pick("kinds", ("tutti",), group, way="region"), peers,
                       None, large),
            ] + [
                Figure(f"kinds.{kind}.{ranks}.{way}",
                       f"{kind} {words}, {ranks} ranks: allreduce by name of as many bytes",
                       SLOWDOWN, 1.1, 3, pick("kinds", ("tutti",), group, way=way),
                       named_allreduce, None, small + large)
                for way, words in (("named", "by name"), ("declared", "by handle"),
                                   ("replayed", "replayed"))
            ]
            if kind in GLOO_KINDS:
                figures.append(Figure(f"kinds.{kind}.{ranks}.tcp", f"{kind} of 4 MiB over TCP, {ranks} ranks",
                                      SPEEDUP, 1.5, 0.33, pick("kinds_tcp", ("tutti",), group),
                                      pick("kinds_tcp", GLOO, group)))
    return figures


def latencies():
    asynchronous = pick("latency", case="latency")
    return [
        Figure("latency.median", "Asynchronous named allreduce of 4 B, submit to done: median",
               VALUE, 15, 40, asynchronous, field="p50_us", unit="us"),
        Figure("latency.p99", "Asynchronous named allreduce of 4 B, submit to done: 99 of 100",
               VALUE, 100, 300, asynchronous, field="p99_us", unit="us"),
        Figure("create", "Communicator and a first 4-byte allreduce, 2 processes", VALUE, 50, 100,
               pick("create", case="create"), scale=1e-3, unit="ms"),
    ]


def steady_state():
    nothing_moves = (("extra.plan_locked", True), ("extra.control_messages", 0),
                     ("extra.negotiation_messages", 0), ("extra.allocations", 0),
                     ("extra.uneven_steps", 0), ("extra.holds", True), ("wrong", 0))
    about = {"names": "161 names with 64 elements each", "true": "161 tensors of true sizes"}
    figures = [
        Figure(f"steady.{kind}.{ranks}.{backend}",
               f"Steady state, {about[kind]}, {ranks} ranks, {backend}", FAULTS, 0, 0,
               pick("steady", ("tutti",), f"{kind}.{ranks}.{backend}"), unit="faults",
               faults=nothing_moves)
        for kind in about for ranks in (2, 4) for backend in ("shm", "tcp")
    ]
    return figures + [
        Figure("steady.seeds", "1,000 seeds of shuffled, missing, new, re-shaped, doubled tensors",
               FAULTS, 0, 0, pick("seeds"), unit="faults", faults=(("extra.failed", 0),))
    ]


def tcp(scope):
    figures = []
    shares = {2: (0.80, 0.70), 4: (0.65, 0.65)}
    for place in ("loopback", "namespaces"):
        for ranks in (2, 4):
            topic, group, points = f"tcp_{place}", str(ranks), at_bytes(scope.tcp)
            ours = pick(topic, ("tutti",), group, case="allreduce")
            where = f"TCP, {place}, {ranks} ranks"
            figures += [
                Figure(f"tcp.{place}.{ranks}.gloo", f"{where}: Gloo as shipped", SPEEDUP, 2, 1.5,
                       ours, pick(topic, GLOO, group, ("shipped",)), None, points),
                Figure(f"tcp.{place}.{ranks}.gloo_cubic", f"{where}: Gloo with cubic", SPEEDUP,
                       1.2, 1.0, ours, pick(topic, GLOO, group, ("cubic",)), None, points),
                Figure(f"tcp.{place}.{ranks}.sockets", f"{where}: plain sockets' ring", BESIDE,
                       *shares[ranks], pick("sockets.raw", ("tutti",), f"{place}.{ranks}"),
                       points=points, unit=UNITS[SHARE]),
            ]
    for ranks, wanted in ((2, 0.5), (4, 0.7)):
        figures.append(
            Figure(f"tcp.latency.{ranks}", f"TCP, 4 B to 4 KiB, {ranks} ranks: Gloo", SLOWDOWN,
                   wanted, wanted, pick("tcp_latency", ("tutti",), str(ranks)),
                   pick("tcp_latency", GLOO, str(ranks)), None, at_bytes(scope.tcp_latency)))
    return figures + [
        Figure("tcp.stall", f"TCP: the longest of {scope.stall_calls:,} small calls", VALUE, 20, 20,
               pick("stall", case="latency"), field="max_us", scale=1e-3, unit="ms"),
        Figure("tcp.shaped", "TCP over a link of 1 Gb/s: plain sockets' goodput", BESIDE, 0.97, 0.93,
               pick("sockets.raw", ("tutti",), "shaped.2"), points=at_bytes(scope.shaped),
               unit=UNITS[SHARE]),
    ]


def beside_libraries(scope):
    figures = []

    def compare(topic, group, about, target, floor):
        figures.append(Figure(f"{topic}.{group}", f"{about}, from 4 MiB", BESIDE, target, floor,
                              pick(topic, ("tutti",), group), points=at_bytes(scope.beside)))

    compare("gloo.raw", "allreduce", "Allreduce over gloo: Gloo called directly", 0.95, 0.85)
    for over in ("shm", "tcp"):
        for case in ("broadcast", "sendrecv"):
            compare("ucx.raw", f"{case}.{over}", f"{case} over ucx ({over}): UCX called directly",
                    0.90, 0.80)
        # UCX's puts go into memory that UCX has mapped, and so do Tutti's.
        compare("ucx.raw", f"allreduce.{over}",
                f"Allreduce of a GradientArena over ucx ({over}): UCX's puts both ways", 0.70, 0.55)
    return figures


def kernels_and_more():
    figures = []
    two_and_four = ({"extra.inputs": 2}, {"extra.inputs": 4})
    for dtype in ("f32", "f16", "bf16"):
        for cores in (1, 2):
            # Both sides count the bytes that they load and store, so the ratio compares bandwidths.
            figures.append(
                Figure(f"kernels.{dtype}.{cores}", f"k-input sum, {dtype}, 256 MiB, {cores} cores",
                       BESIDE, 0.90, 0.80,
                       pick("kernels", ("tutti",), str(cores), case="sums", dtype=dtype),
                       points=two_and_four, unit="of the copy's bandwidth"))
    for dtype in ("f16", "bf16"):
        sums = pick("kernels", ("tutti",), "l2", case="kernels", way="vectorised", dtype=dtype)
        loops = pick("kernels", ("tutti",), "l2", case="kernels", way="plain", dtype=dtype)
        figures.append(Figure(f"kernels.l2.{dtype}", f"{dtype} from L2: plain loops", SPEEDUP, 5, 5,
                              sums, loops, None, tuple(
                                  {"bytes": 128 << 10, "op": op, **inputs}
                                  for op in ("sum", "average") for inputs in two_and_four)))
    return figures + [
        Figure("optimizer.sharded", "Sharded fused Adam: allreduce and a full Adam step",
               VALUE, 0.6, 0.75, pick("optimizer", case="fused_optimizer"), field="extra.ratio",
               unit="x its time"),
        Figure("demo.exposed", "Demo: communication that training waits for", VALUE, 5, 10,
               pick("demo", case="demo"), field="extra.exposed_percent", unit="% of time"),
    ]


def training():
    figures = []
    for model, about in (("resnet50", "ResNet-50, 4 images a rank"),
                         ("gpt2", "GPT-2 124M, 256 tokens a rank")):
        for ranks in (1, 2):
            group = f"{model}.{ranks}"
            ours = pick("training", ("tutti",), group)
            words = f"{about}, {ranks} rank{'s' if ranks > 1 else ''}"
            for name, torch, variants in (("newest", "the newest torch", ("newest", "channels_last")),
                                          ("debian", "Debian's torch", ("debian",))):
                figures.append(Figure(f"training.{group}.{name}", f"{words}: {torch}", SPEEDUP, 1.0,
                                      0.5, ours, pick("training", TORCH, group, variants)))
        figures.append(
            Figure(f"training.{model}.exposed", f"{about}, 2 ranks: what waits for gradients", VALUE,
                   3, 10, pick("training", ("tutti",), f"{model}.2"), field="extra.exposed_percent",
                   unit="% of time"))
    return figures


def sharded():
    return [
        Figure(f"sharded.zero1.{ranks}",
               f"ZeRO-1 with Adam, TCP, {ranks} ranks: allreduce and a full Adam step",
               VALUE, 0.8, 1.0, pick("sharded", ("tutti",), str(ranks), case="sharded"),
               field="extra.ratio", unit="x its time")
        for ranks in (2, 4)
    ] + [
        Figure("sharded.zero3", "ZeRO-3 step of a small GPT-2, TCP, 2 ranks: FSDP2 of torch over Gloo",
               SLOWDOWN, 0.5, 1.0, pick("zero3", case="gpt2"), pick("zero3", TORCH, case="fsdp")),
        Figure("sharded.save", "A save in the background, small GPT-2, TCP: what a step waits for",
               VALUE, 2, 10, pick("save", case="gpt2"), field="extra.save_percent",
               unit="% of a step"),
    ]


def all_figures(scope):
    figures = (shared_memory(scope) + gradient_sets() + under_torch() + kinds(scope) + latencies() +
               steady_state() + tcp(scope) + beside_libraries(scope) + kernels_and_more() +
               training() + sharded())
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names)
    return figures
