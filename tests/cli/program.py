"""Runs the built program as users do, and looks at what it says and leaves behind."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

BINARY = os.environ.get("TERATRON_BINARY")
needs_binary = pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program")
COMM_TEST = os.path.join(os.path.dirname(BINARY or ""), "..", "comm", "comm_test")
NN_TEST = os.path.join(os.path.dirname(BINARY or ""), "..", "nn", "nn_test")
needs_comm_test = pytest.mark.skipif(not os.path.exists(COMM_TEST), reason="comm_test is not beside the program")
DIVERGENCES = ["shape", "operation", "order"]  # of ranks in comm_test

TINY = ["--num-layers", "2", "--hidden-size", "16", "--num-attention-heads", "2", "--seq-length", "16",
        "--max-position-embeddings", "16", "--micro-batch-size", "2", "--global-batch-size", "2", "--lr", "1e-3",
        "--eval-iters", "0", "--device", "cpu", "--num-threads", "1"]
VOCABULARY = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "60"]
MOCK = [*TINY, *VOCABULARY, "--mock-data"]
JOB = [*MOCK, "--global-batch-size", "4", "--train-iters", "4", "--log-interval", "1"]
NOT_FOR_USERS = ("c10::", "Exception raised from", "terminate called", "Assertion", "what():", "libtorch", ".cpp:")


def environment(fault=""):
    return {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "TERATRON_FAULT": fault}


def interrupted(arguments, folder, fault, number=signal.SIGINT):
    """A signal while a write waits in a conversion into `folder`; what is in it then."""
    process = subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(fault),
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # a background job ignores it
    deadline = time.monotonic() + 30
    while not list(folder.glob("*.partial-*")) and not list(folder.glob("*/*.partial-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    return {path.name for path in folder.rglob("*")}


def measured(*args, code=0):
    """The peak of what the program has in memory, in bytes, and seconds. The kernel counts from exec on, pages of the
    process alone: files are read into its memory, not mapped, so that the page cache is not in it."""
    start, peak = time.monotonic(), 0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([BINARY, *map(str, args)], stdout=output, stderr=output, env=environment())
        while process.poll() is None:
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            peak = max(peak, int(found[1]) << 10 if found else 0)
            time.sleep(0.005)
        output.seek(0)
        assert process.returncode == code, output.read()
    return peak, time.monotonic() - start


def teratron(*args, code=0, fault="", memory=None, timeout=60, binary=BINARY):
    """`memory`: most bytes of address space that the program may have."""
    limit = ["prlimit", f"--as={memory}"] if memory else []
    result = subprocess.run([*limit, binary, *map(str, args)], capture_output=True, text=True, timeout=timeout,
                            stdin=subprocess.DEVNULL, env=environment(fault))
    output = result.stdout + result.stderr
    assert result.returncode == code, f"exit code {result.returncode}, not {code}: {output[-600:]}"
    assert not [words for words in NOT_FOR_USERS if words in output], output[-3000:]
    return result


def train(*args, **expected):
    return teratron("pretrain", "gpt", *args, **expected)


def start(args, fault=""):
    return subprocess.Popen([BINARY, "pretrain", "gpt", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env=environment(fault))


def kept(folder, iterations, interval):
    """Flags of a run that saves and resumes in `folder`."""
    return [*MOCK, "--train-iters", str(iterations), "--save-interval", str(interval), "--save", str(folder),
            "--load", str(folder)]


def advises(text):
    """A message ends with what to do: one more sentence after what is wrong."""
    assert re.search(r"[.;?] \S.*\w", text), f"no advice in: {text}"


def message(result, *parts):
    """The one error on stderr, which says each of the parts (whatever the case of letters) and what to do."""
    lines = result.stderr.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    assert len(starts) == 1, f"one message was expected: {result.stderr}"
    text = "\n".join(lines[starts[0]:])
    assert len(text) < 2000, text
    missing = [part for part in map(str, parts) if part.lower() not in text.lower()]
    assert not missing, f"{missing} is not in: {text}"
    advises(text)
    return text


def each(cases, check, folder):
    """check(case, its folder) for every case, two at a time; reports every failure."""
    def attempt(numbered):
        number, case = numbered
        own = folder / f"case{number}"
        own.mkdir()
        try:
            check(case, own)
        except AssertionError as error:
            return f"{case!r:.80}: {error}".splitlines()[0]
        return None

    cases = list(cases)
    assert cases
    with ThreadPoolExecutor(2) as pool:
        failures = [failure for failure in pool.map(attempt, enumerate(cases)) if failure]
    assert not failures, f"{len(failures)} of {len(cases)}:\n" + "\n".join(failures)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processes(commands, variables):
    """Starts the commands together; their exit codes and outputs."""
    running = [subprocess.Popen(command, env={**environment(), **more}, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT) for command, more in zip(commands, variables)]
    try:
        outputs = [process.communicate(timeout=90)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    return [process.returncode for process in running], outputs


def communicator_tests(backend, logs, *flags, program=COMM_TEST):
    job = [BINARY, "launch", "--nproc-per-node", "2", "--backend", backend, "--log-dir", str(logs), "--", program, *flags]
    return subprocess.run(job, capture_output=True, text=True, timeout=120, env=environment())


def losses(text):
    return [float(value) for value in re.findall(r"lm loss: (\S+)", text)]


def weights(folder, iteration):
    from safetensors.torch import load_file  # other tests do without torch
    return load_file(folder / f"iter_{iteration:07d}" / "shard-00000.safetensors")


def assert_bitwise(ours, expected):
    import torch
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape, name
        same = ours[name].contiguous().view(torch.uint8).equal(tensor.contiguous().view(torch.uint8))
        assert same, f"{name} differs"


def step_events(folder):
    log = folder / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in events if event["type"] == "step"]


def steps(folder):
    return [event["iteration"] for event in step_events(folder)]


def curve(folder):
    """Loss and gradient norm of each iteration; what was trained again after a crash counts."""
    return {event["iteration"]: (event["losses"], event["grad_norm"]) for event in step_events(folder)}


def wait_for(condition, what):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)
