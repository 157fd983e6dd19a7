"""Jobs of several ranks, started in every way, and their processes."""

import shutil
import subprocess

import pytest
from program import BINARY, environment, free_port, teratron

needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun is not installed (openmpi-bin)")
BACKENDS = ["threads", "processes", pytest.param("mpi", marks=needs_mpirun)]


def launch(ranks, *args, code=0, fault="", flags=()):
    return teratron("launch", "--nproc-per-node", ranks, *flags, "--", "pretrain", "gpt", *args, code=code, fault=fault)


def mpirun(ranks, *args):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), BINARY, *args]


def start_job(*args, fault="", flags=()):
    return subprocess.Popen([BINARY, "launch", *map(str, flags), "--", "pretrain", "gpt", *map(str, args)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(fault))


def start_two_machines(*args, fault="", flags=()):
    """Two launchers of two ranks each, which meet on this machine."""
    port = free_port()
    machines = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", port]
    return [start_job(*args, fault=fault, flags=[*machines, "--node-rank", node, *flags]) for node in range(2)]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return list(map(int, file.read().split()))


def rank_pids(process, backend="processes"):
    """Of a job that `teratron launch` has started. Under mpirun its child is mpirun."""
    pids = children(process.pid)
    return children(pids[0]) if backend == "mpi" else pids
