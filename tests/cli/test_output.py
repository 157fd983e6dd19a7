"""A reader of the output that stops reading or goes away: the job goes on, and signals work."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import termios
import time

import pytest
from program import BINARY, environment, kept, needs_binary, steps, wait_for

pytestmark = needs_binary

LAUNCH = ["launch", "--nproc-per-node", "2", "--backend", "processes"]
JOBS = {"launch": [*LAUNCH, "--"], "pretrain": []}
PIPE_BYTES = 4096


@pytest.fixture
def unread():
    """A pipe that is full, and nothing reads it."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(writing, b"\n" * PIPE_BYTES)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def start(args, output, errors=None):
    return subprocess.Popen([BINARY, *map(str, args)], stdin=subprocess.DEVNULL, stdout=output, stderr=errors or output,
                            env=environment())


def read_until(descriptor, words):
    text = b""
    end = time.monotonic() + 20
    while words.encode() not in text:
        assert time.monotonic() < end, text[-1000:]
        text += os.read(descriptor, 65536)
    return text.decode()


@pytest.mark.parametrize("job", JOBS)
def test_a_signal_saves_while_nothing_reads(tmp_path, unread, job):
    run = tmp_path / "run"
    ranks = ["--tp", "2"] if job == "launch" else []
    process = start([*JOBS[job], "pretrain", "gpt", *kept(run, 100000, 100000), *ranks, "--log-interval", "1"], unread[1])
    wait_for(lambda: len(steps(run)) >= 30, "thirty steps")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 75
    assert time.monotonic() - began < 10
    assert int((run / "latest_checkpointed_iteration.txt").read_text()) == steps(run)[-1]
    if job == "launch":
        assert "lm loss" in (run / "logs" / "rank-1.log").read_text(), "the logs have what the pipe did not take"


def test_a_terminal_stopped_with_ctrl_s(tmp_path):
    """kill -TERM from elsewhere."""
    run = tmp_path / "run"
    controlling, terminal = pty.openpty()
    process = start(["pretrain", "gpt", *kept(run, 100000, 100000), "--log-interval", "1"], terminal)
    wait_for(lambda: len(steps(run)) >= 3, "three steps")
    read_until(controlling, "lm loss")
    termios.tcflow(terminal, termios.TCOOFF)
    before = len(steps(run))
    wait_for(lambda: len(steps(run)) >= before + 100, "a hundred more steps")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 75
    assert int((run / "latest_checkpointed_iteration.txt").read_text()) == steps(run)[-1]
    os.close(terminal)
    os.close(controlling)


LINES = 100000
WORK = """i=0; yes "a line of a rank" | head -n %d; echo "that was all"; while [ ! -e "%s" ]; do sleep 0.1; done; echo "the end" """


def test_dropped_lines_are_counted_and_in_the_log(tmp_path):
    reading, writing = os.pipe()
    go_on, log = tmp_path / "go_on", tmp_path / "rank-0.log"
    process = start(["launch", "--log-dir", tmp_path, "--nproc-per-node", 1, "--", "/bin/sh", "-c", WORK % (LINES, go_on)], writing)
    os.close(writing)
    wait_for(lambda: log.exists() and "that was all" in log.read_text(), "the rank's last line in its log")
    text = read_until(reading, " have them\n")
    go_on.touch()
    text += read_until(reading, "the end\n")
    assert process.wait(timeout=10) == 0
    os.close(reading)
    found = re.search(rf"notice: (\d+) lines were dropped here: nothing read this output. The ranks' logs in {tmp_path} have them", text)
    assert found and text.count("a line of a rank\n") + int(found.group(1)) == LINES + 1
    assert log.read_text() == "a line of a rank\n" * LINES + "that was all\nthe end\n"


@pytest.mark.parametrize("job", JOBS)
def test_a_reader_that_goes_away_does_not_end_the_job(tmp_path, job):
    """teratron ... | head -1"""
    run = tmp_path / "run"
    ranks = ["--tp", "2"] if job == "launch" else []
    reading, writing = os.pipe()
    process = start([*JOBS[job], "pretrain", "gpt", *kept(run, 20, 10), *ranks, "--log-interval", "1"], writing, subprocess.PIPE)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    errors = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0, errors
    assert errors.count("warning: nothing reads stdout any more, and its lines are dropped: the job goes on") == 1, errors
    assert (run / "latest_checkpointed_iteration.txt").read_text() == "20" and len(steps(run)) == 20
    if job == "launch":
        assert "after training is done" in (run / "logs" / "rank-0.log").read_text()


def test_a_long_help_waits_for_its_reader():
    process = subprocess.Popen([BINARY, "pretrain", "gpt", "--help-all"], stdout=subprocess.PIPE, pipesize=PIPE_BYTES)
    time.sleep(2.5)
    text = process.communicate(timeout=20)[0].decode()
    assert process.returncode == 0 and len(text) > 5 * PIPE_BYTES and "--yaml-cfg TEXT" in text.splitlines()[-2]
