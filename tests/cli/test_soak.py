"""A job of process ranks that meets one fault after another, among strangers: its numbers are the unbroken job's."""

import os
import random
import signal
import subprocess
import threading
import time

import pytest
from jobs import below_ephemeral_ports, disturb, launch, rank_pids
from program import BINARY, curve, environment, kept, needs_binary, steps

pytestmark = [needs_binary,
              pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="takes minutes: ./run test --long")]

RANKS, ITERATIONS, INTERVAL, FAULTS = 4, 600, 5, 50
LAYOUT = ["--tp", "2", "--use-distributed-optimizer"]


class Output:
    """What becomes of a job's output: it is read, nothing reads it, or its reader goes away."""

    def __init__(self, kind):
        self.kind = kind
        self.reading, self.writing = os.pipe()
        self.text = b""
        self.reader = threading.Thread(target=self._read)

    def started(self):
        os.close(self.writing)
        if self.kind == "read":
            self.reader.start()
        elif self.kind == "gone":
            os.close(self.reading)

    def _read(self):
        while piece := os.read(self.reading, 65536):
            self.text = (self.text + piece)[-20000:]

    def ended(self):
        if self.kind == "read":
            self.reader.join()
        if self.kind != "gone":
            os.close(self.reading)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids):
    end = time.monotonic() + 60
    while any(map(alive, pids)):
        assert time.monotonic() < end, "ranks outlive their launcher"
        time.sleep(0.05)


def wait_for_progress(job, run, draw):
    """Some steps, or now and then only the start."""
    if draw.random() < 0.2:
        time.sleep(2 * draw.random())
        return
    target = max(steps(run), default=0) + draw.randint(1, 12)
    end = time.monotonic() + 60
    while job.poll() is None and max(steps(run), default=0) < target:
        assert time.monotonic() < end, f"waited in vain for step {target}"
        time.sleep(0.02)


def inject(fault, job, ranks, draw):
    if fault == "kill a rank" and ranks:
        os.kill(draw.choice(ranks), signal.SIGKILL)
    elif fault == "kill two ranks" and len(ranks) > 1:
        for pid in draw.sample(ranks, 2):
            os.kill(pid, signal.SIGKILL)
    elif fault == "kill the launcher":
        job.kill()
    else:
        job.send_signal(signal.SIGINT if fault == "interrupt" else signal.SIGTERM)


def attempt(run, port, draw):
    """Starts the job, injects a fault, and waits for the end; what happened and the exit code."""
    fault = draw.choice(["kill a rank", "kill a rank", "kill two ranks", "kill the launcher", "terminate", "interrupt"])
    output = Output(draw.choice(["read", "unread", "gone"]))
    job = subprocess.Popen([BINARY, "launch", "--nproc-per-node", str(RANKS), "--backend", "processes", "--master-port",
                            str(port), "--", "pretrain", "gpt", *kept(run, ITERATIONS, INTERVAL), *LAYOUT,
                            "--global-batch-size", "4", "--log-interval", "1"],
                           stdin=subprocess.DEVNULL, stdout=output.writing, stderr=output.writing,
                           env=environment("comm.collective:delay=1"))
    output.started()
    try:
        wait_for_progress(job, run, draw)
        ranks = rank_pids(job) if job.poll() is None else []
        if job.poll() is None:
            inject(fault, job, ranks, draw)
        code = job.wait(timeout=90)
        wait_until_gone(ranks)
    finally:
        job.kill()
        output.ended()
    return f"{fault}, output {output.kind}", code, output.text.decode(errors="replace")


def test_fifty_faults_change_no_number(tmp_path):
    draw = random.Random(5)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    port, stop = below_ephemeral_ports(), threading.Event()
    strangers = threading.Thread(target=disturb, args=(port, stop))
    strangers.start()
    codes = {}
    try:
        for _ in range(FAULTS):
            what, code, text = attempt(broken, port, draw)
            codes.setdefault(what, []).append(code)
            assert code not in (1, 2, 3, 4), f"{what}: exit code {code}\n{text[-3000:]}"
    finally:
        stop.set()
        strangers.join()
    print("exit codes:", codes, "steps:", max(steps(broken), default=0))
    common = [*LAYOUT, "--global-batch-size", "4"]
    launch(RANKS, *kept(broken, ITERATIONS, ITERATIONS), *common, flags=["--backend", "processes"])
    launch(RANKS, *kept(whole, ITERATIONS, ITERATIONS), *common, flags=["--backend", "processes"])
    assert len(curve(whole)) == ITERATIONS
    assert curve(broken) == curve(whole)
