"""The host side of a job of many ranks: what a start, agreements and barriers cost, and how faults end it.

The ranks are processes without a model (scale_rank.cpp). docs/scaling.md explains the bounds.
"""

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
import checkpoint_costs
from program import BINARY, environment

SCALE_RANK = os.path.join(os.path.dirname(BINARY or ""), "..", "..", "tests", "scale_rank")
pytestmark = pytest.mark.skipif(not BINARY or not os.path.exists(SCALE_RANK), reason="scale_rank is not built")
LONG = bool(os.environ.get("TERATRON_LONG_TESTS"))
RANKS_PER_HOST = 8
STARTING = threading.Lock()  # one job after the other


class Job:
    """Ranks as processes on this machine; `absent` are never started. `descriptors`: how many a rank may open."""

    def __init__(self, folder, ranks, *flags, absent=(), restarts=lambda rank: 0, descriptors=None):
        self.ranks, self.folder = ranks, folder
        self.listener = socket.create_server(("127.0.0.1", 0))  # rank 0's: no other job can take the port
        self.flags, self.descriptors, self.processes = [str(flag) for flag in flags], descriptors or {}, {}
        self.begin = time.monotonic()
        for rank in range(ranks):
            if rank not in absent:
                self.start(rank, restarts(rank))
        self.listener.close()

    def start(self, rank, restarts=0):
        variables = {"RANK": rank, "WORLD_SIZE": self.ranks, "LOCAL_RANK": rank % RANKS_PER_HOST,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.listener.getsockname()[1], "TERATRON_JOB_SECRET": "s" * 32,
                     "TORCHELASTIC_RESTART_COUNT": restarts}
        if rank == 0:
            variables["TERATRON_STORE_LISTENER"] = self.listener.fileno()
        command = [SCALE_RANK, *self.flags]
        if rank in self.descriptors:
            command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(self.descriptors[rank]), *command]
        with open(self.folder / f"{rank}.txt", "w", encoding="utf-8") as output:
            self.processes[rank] = subprocess.Popen(command, stdout=output, stderr=output, pass_fds=[self.listener.fileno()] if rank == 0 else [],
                                                    env=environment() | {k: str(v) for k, v in variables.items()})

    def output(self, rank):
        return (self.folder / f"{rank}.txt").read_text(encoding="utf-8")

    def wait_for(self, text, seconds=60):
        """Until every rank has printed it."""
        deadline = time.monotonic() + seconds
        waiting = set(self.processes)
        while waiting:
            assert time.monotonic() < deadline, (len(waiting), {rank: self.output(rank) for rank in list(waiting)[:3]})
            waiting = {rank for rank in waiting if text not in self.output(rank)}
            time.sleep(0.05)

    def end(self, seconds=60):
        """The exit codes, by rank."""
        deadline = time.monotonic() + seconds
        return {rank: process.wait(max(deadline - time.monotonic(), 0.1)) for rank, process in self.processes.items()}

    def reports(self):
        return {rank: self.objects(rank)[0] for rank in self.processes}

    def objects(self, rank):
        return [json.loads(line) for line in self.output(rank).splitlines() if line.startswith("{")]

    def faults(self):
        texts = {rank: self.output(rank) for rank in self.processes}
        return {rank: text.split("fault: ", 1)[1].splitlines()[0] for rank, text in texts.items() if "fault: " in text}

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()


@contextlib.contextmanager
def started_jobs(folder):
    """A function that starts jobs, which end with the context."""
    jobs = []

    def start(*args, **options):
        own = folder / str(len(jobs))
        own.mkdir()
        with STARTING:
            jobs.append(Job(own, *args, **options))
        return jobs[-1]

    try:
        yield start
    finally:
        for job in jobs:
            job.close()


@pytest.fixture(name="start")
def fixture_start(tmp_path):
    with started_jobs(tmp_path) as start:
        yield start


def check_costs(reports):
    """The bounds of docs/scaling.md."""
    n = len(reports)
    rounds = math.ceil(math.log2(n))
    for name, messages_in_all in (("barrier", 2 * (n - 1)), ("gather", n - 1), ("broadcast", n - 1), ("kinds", 2 * (n - 1)), ("buckets", n - 1)):
        costs = [report[name] for report in reports.values()]
        assert sum(cost["messages"] for cost in costs) == messages_in_all, name
        assert max(cost["messages"] for cost in costs) <= rounds + 1, name
        assert max(cost["waits"] for cost in costs) <= rounds + 1, name
    # What is merged on the way, and what all compare with rank 0's.
    assert max(report["kinds"]["bytes"] for report in reports.values()) < 256 * (rounds + 1)
    assert max(report["buckets"]["bytes"] for report in reports.values()) < 4096 * (rounds + 1)
    # Hashes to rank 0, the ranks that send their record, their records, and what differs.
    assert sum(report["consensus"]["messages"] for report in reports.values()) <= 4 * (n - 1)
    assert sum(report["consensus"]["bytes"] for report in reports.values()) < 600 * n * (rounds + 1)
    assert max(report["connections"] for report in reports.values()) <= rounds + 1
    assert max(report["descriptors"] for report in reports.values()) <= rounds + 16
    assert sum(report["connections"] for report in reports.values()) == 2 * (n - 1)


def check_holders(reports):
    """Tensors of all ranks as stages, after the checkpoint: connections that it did not open are greeted."""
    costs = [report["holders"] for report in reports.values()]
    rounds = math.ceil(math.log2(len(costs)))
    assert max(cost["waits"] for cost in costs) == 2 * rounds
    assert max(cost["messages"] for cost in costs) <= 4 * rounds
    assert max(cost["bytes"] for cost in costs) < 2048 * rounds
    print("holders:", {key: (max(cost[key] for cost in costs), sum(cost[key] for cost in costs)) for key in ("messages", "bytes", "waits")})


def summary(reports):
    total = {name: {key: sum(report[name][key] for report in reports.values()) for key in ("messages", "bytes")}
             | {"waits": max(report[name]["waits"] for report in reports.values())}
             for name in ("start", "barrier", "consensus", "gather", "broadcast", "kinds", "buckets")}
    most = {key: max(report[key] for report in reports.values()) for key in ("connections", "descriptors", "resident_kib")}
    most["start_cpu"] = max(report["start"]["cpu"] for report in reports.values())
    return json.dumps(total | most)


def fault_of(job, survivors, seconds):
    """The one text that all survivors print, within so many seconds."""
    begin = time.monotonic()
    for rank in survivors:
        assert job.processes[rank].wait(max(begin + seconds - time.monotonic(), 0.1)) == 5, job.output(rank)
    faults = job.faults()
    return {re.sub(r"\(pid \d+ on [^)]*\)", "(pid)", faults[rank]) for rank in survivors}


def check_failure_costs(job, living):
    """From the failing barrier to the end, the news of the failure included."""
    costs = [job.objects(rank)[1]["failure"] for rank in living]
    assert sum(cost["messages"] for cost in costs) <= 20 * job.ranks, costs
    assert max(cost["messages"] for cost in costs) <= 2 * job.ranks + 32, costs
    assert sum(cost["bytes"] for cost in costs) <= 8192 * job.ranks, costs
    assert max(cost["bytes"] for cost in costs) <= 384 * job.ranks + (48 << 10), costs


def killed(start, ranks, victim):
    job = start(ranks, "--barriers", 1000)
    job.wait_for("{")
    job.processes[victim].kill()
    faults = fault_of(job, set(range(ranks)) - {victim}, 6)
    assert faults == {f"rank {victim} (pid) has died: its connection was closed unexpectedly"}


def stopped(start, ranks, victim):
    job = start(ranks, "--barriers", 1000, "--timeout", 3)
    job.wait_for("{")
    job.processes[victim].send_signal(signal.SIGSTOP)
    faults = fault_of(job, set(range(ranks)) - {victim}, 3 + 3 + 6)
    for fault in faults:  # ranks that it never wrote to do not know its process
        assert re.search(rf"timed out after 3 s: rank {victim}( \(pid\))? does not answer: it is stopped", fault), faults
        assert fault.count("does not answer") == 1, fault
    check_failure_costs(job, set(range(ranks)) - {victim})


def absent(start):
    job = start(64, "--start-timeout", 8, absent=[41])
    faults = fault_of(job, job.processes, 16)
    assert len(faults) == 1 and "rank 41 of 64 did not join" in faults.pop()


def replaced(start):
    """Its launcher counts restarts from 0, beside others at 1."""
    job = start(64, "--barriers", 1000)
    job.wait_for("{")
    machine = range(16, 24)
    for rank in machine:
        job.processes[rank].kill()
    fault_of(job, set(range(64)) - set(machine), 6)
    again = start(64, restarts=lambda rank: 0 if rank in machine else 1)
    assert set(again.end(15).values()) == {0}
    told = "restarted different numbers of times, as after a machine was replaced (ranks 0-15, 24-63: 1; ranks 16, 17, 18, 19, 20, 21, 22, 23: 0)"
    assert told in again.output(0)


def stopped_machine(start, machine, ranks=64):
    """Of its ranks eight are named and the others counted, by one rank."""
    job = start(ranks, "--barriers", 1000, "--timeout", 3)
    job.wait_for("{")
    for rank in machine:
        job.processes[rank].send_signal(signal.SIGSTOP)
    living = set(range(ranks)) - set(machine)
    for fault in fault_of(job, living, 3 + 3 + 3 + 6):
        named = [int(rank) for rank in re.findall(r"rank (\d+)(?: \(pid\))? does not answer", fault)]
        assert named == list(machine)[:8], fault
        assert len(machine) == 8 or fault.endswith(f"; and {len(machine) - 8} others"), fault
    check_failure_costs(job, living)


def killed_machine(start, machine):
    """Each rank names the first death that it hears of."""
    job = start(64, "--barriers", 1000)
    job.wait_for("{")
    for rank in machine:
        job.processes[rank].kill()
    living = set(range(64)) - set(machine)
    for fault in fault_of(job, living, 6):
        found = re.fullmatch(r"rank (\d+)(?: \(pid\))? has died: its connection was closed unexpectedly", fault)
        assert found and int(found[1]) in machine, fault
    check_failure_costs(job, living)


def too_few_descriptors(start, limit, rank):
    """It knows before it joins how many it needs, and tells all."""
    job = start(4, descriptors={rank: limit})
    assert set(job.end(30).values()) == {2}, [job.output(rank) for rank in range(4)]
    needed = 68 if rank == 0 else 76
    for text in map(job.output, range(4)):
        assert re.match(rf"error: ranks: rank {rank} of 4 on \S+ may open {limit} files and sockets, but needs {needed}\. Raise the hard limit", text), text


def just_enough_descriptors(start):
    job = start(4, descriptors={0: 68, 2: 76})
    assert set(job.end(30).values()) == {0}, [job.output(rank) for rank in range(4)]


VICTIMS = [(64, 0), (64, 24), (64, 63), (4, 2)]
TIMED_OUT = {f"stopped {victim} of {ranks}": partial(stopped, ranks=ranks, victim=victim) for ranks, victim in VICTIMS}
MACHINES = {"of 8": range(16, 24), "of 32": range(32, 64), "of rank 0": range(8)}
TIMED_OUT |= {f"stopped machine {name}": partial(stopped_machine, machine=machine) for name, machine in MACHINES.items()}
TIMED_OUT |= {"absent": absent}
NOTICED = {"replaced": replaced, "just enough descriptors": just_enough_descriptors}
NOTICED |= {f"{limit} descriptors on rank {rank}": partial(too_few_descriptors, limit=limit, rank=rank) for rank, limit in ((0, 40), (0, 67), (2, 4), (2, 75))}
NOTICED |= {f"killed machine {name}": partial(killed_machine, machine=machine) for name, machine in MACHINES.items()}
NOTICED |= {f"killed {victim} of {ranks}": partial(killed, ranks=ranks, victim=victim) for ranks, victim in VICTIMS}
FAULTS = TIMED_OUT | NOTICED  # the slowest start first


def run_fault(fault, folder):
    with started_jobs(folder) as start:
        fault(start)


@pytest.fixture(name="results", scope="module")
def fixture_results(tmp_path_factory):
    """Their ranks spend most of the time waiting: several faults at once."""
    with ThreadPoolExecutor(12) as pool:
        yield {name: pool.submit(run_fault, fault, tmp_path_factory.mktemp("fault")) for name, fault in FAULTS.items()}


@pytest.mark.parametrize("fault", NOTICED)
def test_a_fault_that_is_noticed(results, fault):
    results[fault].result()


def run_costs(start, ranks, *flags):
    job = start(ranks, *flags)
    codes = job.end(60)
    seconds = time.monotonic() - job.begin
    assert set(codes.values()) == {0}, {rank: job.output(rank) for rank, code in codes.items() if code}
    assert seconds < (60 if ranks > 64 else 15)
    return seconds, job.reports()


def exponent(costs):
    """k of the least-squares fit cost = c ranks^k."""
    points = [(math.log(ranks), math.log(cost)) for ranks, cost in costs.items()]
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


# The most that costs of all ranks may grow with: n, and n log n, which has 1.24 between 16 and 256 ranks.
EXPONENTS = {"messages": 1.05, "bytes": 1.3}
OF_CHECKPOINTS = {"messages": 1.3, "bytes": 1.5}  # with fewer ranks the exponents are larger: of a load 1.41 up to 64, 1.19 up to 256


def check_exponents(jobs):
    """`jobs`: the reports of all ranks, by their number."""
    for name in ("start", "barrier", "consensus", "gather", "broadcast", *checkpoint_costs.PHASES):
        exponents = OF_CHECKPOINTS if name in checkpoint_costs.PHASES else EXPONENTS
        for key, most in exponents.items():
            found = exponent({ranks: sum(report[name][key] for report in reports.values()) for ranks, reports in jobs.items()})
            print(f"{name} {key}: exponent {found:.2f}")
            assert found < most, (name, key, found)


@pytest.fixture(name="reports_of", scope="module")
def fixture_reports_of():
    """Of jobs that have run, by their number of ranks."""
    return {}


def expect_costs(start, ranks, folder, reports_of):
    seconds, reports = run_costs(start, ranks)
    print(f"\n{ranks} ranks: {seconds:.1f} s", summary(reports))
    check_costs(reports)
    seconds, reports = run_costs(start, ranks, "--checkpoint", folder)
    print(f"a checkpoint: {seconds:.1f} s", checkpoint_costs.summary(reports))
    checkpoint_costs.check(reports)
    check_holders(reports)
    reports_of[ranks] = reports


# The other faults wait meanwhile until they time out.
@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("ranks", [16, 64])
def test_costs_grow_with_the_logarithm(start, tmp_path, reports_of, ranks):
    expect_costs(start, ranks, tmp_path / "checkpoints", reports_of)


@pytest.mark.parametrize("fault", TIMED_OUT)
def test_a_fault_that_times_out(results, fault):
    results[fault].result()


@pytest.mark.skipif(not LONG, reason="--long")
def test_costs_of_256_ranks(start, tmp_path, reports_of):
    expect_costs(start, 256, tmp_path / "checkpoints", reports_of)


@pytest.mark.skipif(not LONG, reason="--long")
def test_a_machine_of_256_ranks_is_stopped(start):
    stopped_machine(start, range(64, 72), ranks=256)


def test_exponents_of_costs(start, tmp_path, reports_of):
    for ranks in (16, 64):
        if ranks not in reports_of:
            reports_of[ranks] = run_costs(start, ranks, "--checkpoint", tmp_path / str(ranks))[1]
    check_exponents(reports_of)
