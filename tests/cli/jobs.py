"""Jobs of several ranks, started in every way, and their processes."""

import collections
import contextlib
import itertools
import shutil
import socket
import struct
import subprocess

import pytest
from program import BINARY, environment, free_port, teratron

needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun is not installed (openmpi-bin)")
BACKENDS = ["threads", "processes", pytest.param("mpi", marks=needs_mpirun)]

HELLO = struct.Struct("<IIqqq32s")  # magic, purpose, caller, called, world size, nonce
MAGIC, RENDEZVOUS = 0x7E4A6E01, 1


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


def disturb(port, stop):
    """300 connections that say nothing, noise, or what a rank says, and new ones in place of the oldest."""
    with contextlib.ExitStack() as last:
        connections = collections.deque()
        last.callback(lambda: [connection.close() for connection in connections])
        for words in itertools.cycle([b"", b"\xff" * 300, HELLO.pack(MAGIC, RENDEZVOUS, 1, 0, 2, b"n" * 32)]):
            if stop.wait(0.002):
                return
            if len(connections) == 300:
                connections.popleft().close()
            with contextlib.suppress(OSError):
                connections.append(socket.create_connection(("127.0.0.1", port), timeout=1))
                connections[-1].sendall(words)


def below_ephemeral_ports():
    """A port that no connection gets as its own: who calls a free one of those again and again reaches itself."""
    with socket.socket() as probe:
        for port in range(21000, 32000):
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no free port")
