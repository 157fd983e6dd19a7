"""--port-range: everything of a job that listens does so in the range."""

import os
import signal
import socket
import subprocess

import pytest
from jobs import children, launch, start_job
from program import BINARY, JOB, MOCK, environment, message, needs_binary, teratron, wait_for

pytestmark = needs_binary

FOREVER = [*MOCK, "--global-batch-size", "8", "--train-iters", "100000", "--log-interval", "1"]
LISTENING = "0A"


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_range(size):
    """Neighbouring ports below those that connections get, none of them in use."""
    for first in range(22000 + 97 * (os.getpid() % 50), 32000, size):
        if all(is_free(port) for port in range(first, first + size)):
            return first, first + size - 1
    raise AssertionError("no free range")


def listening_ports(pid):
    """Of a process, whatever the address."""
    inodes = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        ports |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENING and row[9] in inodes}
    return ports


def test_all_sockets_of_a_job_on_two_machines_listen_in_the_range(tmp_path):
    first, last = free_range(16)
    machines = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--port-range", f"{first}-{last}"]
    jobs = [start_job(*FOREVER, flags=[*machines, "--node-rank", node, "--log-dir", tmp_path / str(node)])
            for node in range(2)]
    try:
        log = tmp_path / "1/rank-3.log"
        wait_for(lambda: log.exists() and "lm loss" in log.read_text(), "the first step")
        pids = [pid for job in jobs for pid in (job.pid, *children(job.pid))]
        assert len(pids) == 6
        ports = [port for pid in pids for port in listening_ports(pid)]
    finally:
        for job in jobs:
            job.send_signal(signal.SIGINT)
        for job in jobs:
            job.communicate(timeout=60)
    assert len(set(ports)) >= 4, "each rank listens"
    assert all(first <= port <= last for port in ports), ports


def test_a_range_without_a_free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message(launch(2, *JOB, flags=["--port-range", f"{port}-{port}"], code=2), f"no port from {port} to {port} is free",
                "--port-range")


@pytest.mark.parametrize("text", ["33000", "2-1", "0-9", "1-65536", "a-b", "33000-33009-1", "-5"])
def test_a_malformed_range(text):
    message(launch(2, *JOB, flags=[f"--port-range={text}"], code=2), "is not a range of ports", "33000-33999")


def test_a_port_outside_the_range():
    flags = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", "29500", "--port-range"]
    message(launch(2, *JOB, flags=[*flags, "33000-33009"], code=2), "port 29500 is not in the range 33000-33009")
    message(teratron("serve", "--load", "nowhere", "--port", "5000", "--port-range", "33000-33009", code=2),
            "port 5000 is not in the range 33000-33009", "--port")


def test_the_server_takes_a_port_of_the_range(tmp_path):
    teratron("pretrain", "gpt", *JOB, "--save", tmp_path, "--save-interval", "4")
    first, last = free_range(4)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        server = subprocess.Popen([BINARY, "serve", "--load", str(tmp_path), "--device", "cpu", "--port-range", f"{first}-{last}"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
        try:
            line = next(line for line in server.stdout if "serving" in line)
            assert line.rstrip().endswith(f":{first + 1}")
            assert listening_ports(server.pid) == {first + 1}
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=30)


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TERATRON_SOCKET_IFNAME"])
def test_interfaces_by_their_usual_variables(tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "lo")
    launch(2, *JOB, flags=["--log-dir", tmp_path])
    monkeypatch.setenv(variable, "none-such")
    message(launch(2, *JOB, flags=["--log-dir", tmp_path], code=2), "no interface 'none-such'", f"Correct {variable}")
