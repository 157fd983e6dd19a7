"""Ranks of a job: processes that a launcher started, or threads of this one."""
import contextlib
import operator
import os
import signal
import sys
import threading

from ._load import close_at_exit, engine

_job = None
_interrupted = threading.Event()


class World:
    """All ranks of a job, as one of them sees it. `run_ranks` makes it, or `World.join`.

    Attributes:
        rank: this rank's number. size: how many there are.

    Example:
        world = teratron.World.join(config)
        print(world.rank, world.size)
    """

    closing_order = 1  # after the trainers

    def __init__(self, rank):
        self._rank = rank
        self.rank = rank.rank
        self.size = rank.size

    def __repr__(self):
        return f"World(rank={self.rank}, size={self.size})"

    @classmethod
    def join(cls, config=None):
        """This process as a rank of the job that the environment describes (teratron launch, torchrun, mpirun, srun), or a
        job of itself. Once per process: later calls return the same. Waits for the other ranks.

        Args:
            config: a Config; its device says how ranks communicate, its distributed_timeout_minutes how long they wait. None:
                through the host, as ranks on CPUs.

        Raises:
            ConfigError: the environment is contradictory, or the device does not fit the backend.
            Error: another rank does not come.
        """
        global _job
        if _job is None:
            _job = cls(engine.join((config or _host_config())._settings))
            close_at_exit(_job)
            _fail_with_uncaught_exceptions(_job)
        return _job

    def close(self):
        """Tells the other ranks that this one has come to its end. Done at the end of the process."""
        self._rank.end()


def _host_config():
    from ._config import Config
    return Config(num_layers=1, hidden_size=8, num_attention_heads=1, seq_length=8, max_position_embeddings=8,
                  tokenizer_type="NullTokenizer", vocab_size=8, device="cpu")


def _fail_with_uncaught_exceptions(world):
    """The other ranks stop at once, with the reason, instead of waiting for a rank that is gone."""
    before, process = sys.excepthook, os.getpid()

    def hook(kind, error, traceback):
        before(kind, error, traceback)
        if os.getpid() == process:  # not in a child of fork()
            world._rank.fail(f"rank {world.rank} failed: {kind.__name__}: {error}")

    sys.excepthook = hook


def run_ranks(n, f):
    """Runs f(world) on n rank threads of this process, which communicate through memory: any layout on one CPU.

    Args:
        n: the number of ranks.
        f: called on each with its World; ranks share Python's lock, the engine computes without it.

    Raises:
        The exception of the first rank that raises; the others end. KeyboardInterrupt after Ctrl-C, between two steps.

    Example:
        def work(world):
            trainer = teratron.Trainer(config, world=world)  # config: tensor_model_parallel_size=2, world_size=2
            return trainer.step().loss
        teratron.run_ranks(2, work)

    Returns:
        A list with the result of f on each rank.
    """
    n = operator.index(n)
    if n < 1 or not callable(f):
        raise ValueError(f"run_ranks takes a number of ranks of at least 1 and a function, not {n} and a {type(f).__name__}")
    results = [None] * n
    failure = []
    ended = threading.Event()

    def on_rank(rank):
        world = World(rank)
        results[world.rank] = f(world)

    def ranks():
        try:
            engine.run_ranks(n, on_rank)
        except BaseException as error:
            failure.append(error)
        finally:
            ended.set()

    # In another thread, as Python's main thread must be free for signals.
    thread = threading.Thread(target=ranks, name="teratron ranks")
    with _noted_interrupt():
        thread.start()
        while not ended.is_set():
            try:
                ended.wait()  # not join(), which takes an interrupted thread for one that has ended
            except KeyboardInterrupt:  # by a handler of the program
                _interrupted.set()
        thread.join()
    if failure:
        try:
            raise failure[0]
        finally:
            failure.clear()
    if _interrupted.is_set() and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    return results


@contextlib.contextmanager
def _noted_interrupt():
    """Ctrl-C is noted for the ranks, not raised here, where nothing would wait for them."""
    main = threading.current_thread() is threading.main_thread()
    if main:
        _interrupted.clear()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: _interrupted.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def check_interrupted():
    """On rank threads, which receive no signals: KeyboardInterrupt if the main thread did."""
    if _interrupted.is_set() and threading.current_thread() is not threading.main_thread():
        raise KeyboardInterrupt


class Group:
    """Ranks of a mesh that differ along some axes. In a group of one rank every collective is the identity.

    Attributes:
        rank: this rank's place in the group. size: its number of ranks.

    Collectives return new tensors; all ranks of the group call them in the same order. Those of the first kind are detached;
    copy_to, reduce_from, gather_from and scatter_to are parts of a graph, and their backward is the adjoint.

    Example:
        group = trainer.mesh.group("tp")
        total = group.all_reduce(torch.tensor([1.0]))
    """

    def __init__(self, group):
        self._group = group
        self.rank = group.rank
        self.size = group.size

    def __repr__(self):
        return f"Group(rank={self.rank}, size={self.size})"

    def all_reduce(self, tensor, op="sum"):
        """The sum ("max", "min") of the ranks' tensors, which have one shape."""
        return self._group.all_reduce(tensor, op)

    def all_gather(self, tensor):
        """[n, ...] of each rank -> [size * n, ...], in the order of ranks."""
        return self._group.all_gather(tensor)

    def reduce_scatter(self, tensor):
        """[size * n, ...] -> this rank's [n, ...] of the sum. ConfigError if dimension 0 does not divide."""
        return self._group.reduce_scatter(tensor)

    def broadcast(self, tensor, root=0):
        """The tensor of rank `root` of the group; all give one of its shape."""
        return self._group.broadcast(tensor, root)

    def copy_to(self, x):
        """x, the same on all ranks, for work that differs: backward sums the gradients."""
        return self._group.copy_to(x)

    def reduce_from(self, x):
        """The sum of the ranks' x: backward gives each the gradient."""
        return self._group.reduce_from(x)

    def gather_from(self, x, dim=0):
        """The ranks' parts of a tensor, concatenated: backward gives each its part of the gradient."""
        return self._group.gather_from(x, dim)

    def scatter_to(self, x, dim=0):
        """This rank's part of x, which is the same on all: backward concatenates the gradients. A view for dim 0."""
        return self._group.scatter_to(x, dim)

    def barrier(self):
        """Waits until all ranks are here."""
        self._group.barrier()


class Mesh:
    """The ranks of a world as a grid of axes "tp", "cp", "ep", "dp", "pp", "etp", "edp"; dp is what the others leave.

    Args:
        world: a World. tp, pp, cp, ep: sizes.

    Raises:
        ConfigError: the sizes do not divide the number of ranks.

    Example:
        mesh = teratron.Mesh(world, tp=2, pp=2)
        mesh.group("dp").size, mesh.group("tp", "pp").rank
    """

    def __init__(self, world, *, tp=1, pp=1, cp=1, ep=1):
        self._mesh = world if isinstance(world, engine.Mesh) else engine.Mesh(
            world._rank, {"tp": tp, "pp": pp, "cp": cp, "ep": ep})

    @property
    def rank(self):
        """This rank's number in the world."""
        return self._mesh.rank

    @property
    def world_size(self):
        """The number of all ranks."""
        return self._mesh.world_size

    def group(self, *axes):
        """The Group of ranks that share this rank's place on all other axes; without axes: all ranks."""
        return Group(self._mesh.group(list(axes)))

    def __str__(self):
        return str(self._mesh)
