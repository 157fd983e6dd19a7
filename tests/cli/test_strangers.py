"""Strangers at the rendezvous port of a job: they learn nothing, take no place and delay nothing."""

import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
from jobs import (HELLO, MAGIC, RENDEZVOUS, below_ephemeral_ports, disturb, launch, rank_pids,
                  start_two_machines)
from program import (BINARY, JOB, curve, environment, free_port, kept, losses, message, needs_binary, processes, steps, teratron,
                     wait_for)

pytestmark = needs_binary

def joining(rank, size, port, secret):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "TERATRON_JOB_SECRET": secret}


def connected(port):
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.02)


def said_to(stranger):
    try:
        return stranger.recv(4096)
    except ConnectionResetError:
        return b""


def test_silent_and_lying_strangers_of_a_job(tmp_path, one_rank):
    port = free_port()
    job = subprocess.Popen([BINARY, "launch", "--nproc-per-node", "2", "--backend", "processes", "--master-port", str(port),
                            "--log-dir", str(tmp_path), "--", "pretrain", "gpt", *JOB, "--tp", "2"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    strangers = [connected(port) for _ in range(20)]
    strangers[0].sendall(HELLO.pack(MAGIC, RENDEZVOUS, 1, 0, 2, b"n" * 32))  # rank 1, without the secret
    strangers[0].sendall(b"\0" * 36)
    strangers[1].sendall(HELLO.pack(MAGIC, RENDEZVOUS, 7, 0, 2, b"n" * 32))  # rank 7 of 2
    strangers[2].sendall(b"\xff" * 4096)
    answers = [said_to(stranger) for stranger in strangers[:3]]
    output, errors = job.communicate(timeout=60)
    assert job.returncode == 0, errors
    assert losses(output) == pytest.approx(one_rank, rel=1e-5)
    assert len(answers[0]) in (0, 68) and not answers[1] and not answers[2], "a challenge is all that they learn"
    assert "not authenticated" not in errors
    for stranger in strangers:
        stranger.close()


def test_ranks_with_a_secret_of_their_user():
    port = free_port()
    command, secret = [BINARY, "pretrain", "gpt", *JOB, "--tp", "2"], "an example of a secret"
    codes, outputs = processes([command, command], [joining(rank, 2, port, secret) for rank in range(2)])
    assert codes == [0, 0], outputs
    assert "not authenticated" not in "".join(outputs) and secret not in "".join(outputs)


def test_ranks_without_a_secret_say_so():
    port = free_port()
    command = [BINARY, "pretrain", "gpt", *JOB, "--tp", "2"]
    codes, outputs = processes([command, command], [joining(rank, 2, port, "") for rank in range(2)])
    assert codes == [0, 0], outputs
    assert [output.count("notice: the connections between ranks are not authenticated") for output in outputs] == [1, 0]


def test_two_machines_share_a_secret_file(tmp_path, one_rank):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    secret.chmod(0o600)
    launchers = start_two_machines(*JOB, "--tp", "2", "--use-distributed-optimizer",
                                   flags=["--log-dir", tmp_path / "logs", "--job-secret-file", secret])
    outputs = [launcher.communicate(timeout=90) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert losses(outputs[1][0]) == pytest.approx(one_rank, rel=1e-5)
    assert "not authenticated" not in outputs[0][1]
    assert not [log for log in (tmp_path / "logs").iterdir() if "0123456789abcdef" in log.read_text()]


def test_another_secret_is_named():
    """The rank that cannot join ends at once; the other one waits for a rank that can, until its time-out."""
    port = free_port()
    command = [BINARY, "pretrain", "gpt", *JOB, "--tp", "2"]
    first = subprocess.Popen(command, env={**environment(), **joining(0, 2, port, "x" * 16)}, stderr=subprocess.PIPE,
                             stdout=subprocess.DEVNULL)
    try:
        codes, outputs = processes([command], [joining(1, 2, port, "y" * 16)])
    finally:
        first.kill()
        first.communicate()
    assert codes == [2] and f"rank 0 at 127.0.0.1:{port} has another secret than rank 1" in outputs[0]


@pytest.mark.parametrize("text,mode,says", [
    ("short\n", 0o600, "not a text of 16 or more characters"), ("0123456789abcdef", 0o640, "other users can read it: its mode is 0640"),
    (None, 0o600, "No such file")])
def test_bad_secret_files(tmp_path, text, mode, says):
    secret = tmp_path / "secret"
    if text:
        secret.write_text(text)
        secret.chmod(mode)
    message(teratron("launch", "--job-secret-file", secret, "--", "env", code=2), secret, says)


def test_a_secret_in_two_places(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    monkeypatch.setenv("TERATRON_JOB_SECRET", "another text of a secret")
    message(teratron("launch", "--job-secret-file", secret, "--", "env", code=2), "TERATRON_JOB_SECRET is another secret")
    monkeypatch.setenv("TERATRON_JOB_SECRET", "short")
    message(teratron("launch", "--", "env", code=2), "TERATRON_JOB_SECRET: has 5 characters, fewer than 16")


def test_the_launcher_makes_a_new_secret_for_every_job(tmp_path):
    shown = []
    for job in range(2):
        teratron("launch", "--log-dir", tmp_path / str(job), "--nproc-per-node", "2", "--backend", "processes", "--", "/bin/sh", "-c",
                 "echo $TERATRON_JOB_SECRET")
        logs = {log.read_text() for log in (tmp_path / str(job)).iterdir()}
        assert len(logs) == 1
        shown += logs
    assert shown[0] != shown[1] and all(re.fullmatch("[0-9a-f]{64}\n", text) for text in shown)


def test_restarts_among_strangers_while_nothing_reads_resume_bitwise(tmp_path):
    whole, broken, port, stop = tmp_path / "whole", tmp_path / "broken", below_ephemeral_ports(), threading.Event()
    launch(2, *kept(whole, 60, 10), "--tp", "2", flags=["--backend", "processes"])
    reading, writing = os.pipe()
    strangers = threading.Thread(target=disturb, args=(port, stop))
    strangers.start()
    job = subprocess.Popen([BINARY, "launch", "--nproc-per-node", "2", "--backend", "processes", "--max-restarts", "2",
                            "--master-port", str(port), "--", "pretrain", "gpt", *kept(broken, 60, 10), "--tp", "2"],
                           stdout=writing, stderr=writing, env=environment("comm.collective:delay=2"))
    try:
        for step, rank in [(15, 0), (35, 1)]:
            wait_for(lambda step=step: step in steps(broken), f"step {step}")
            os.kill(rank_pids(job)[rank], signal.SIGKILL)
        code = job.wait(timeout=90)
        os.set_blocking(reading, False)
        assert code == 0, os.read(reading, 1 << 16).decode()[-3000:]
    finally:
        stop.set()
        strangers.join()
        job.kill()
        os.close(writing)
        os.close(reading)
    assert curve(broken) == curve(whole)
