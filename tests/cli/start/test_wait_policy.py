"""OpenMP threads wait passively, however the program is started."""
import os
import subprocess
import time

import pytest

BINARY = os.environ.get("TERATRON_BINARY")
pytestmark = pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program")


def policy(**chosen):
    """What a program that waits for its input has in its environment."""
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    process = subprocess.Popen([BINARY, "tokenizer", "encode", "--tokenizer-type", "NullTokenizer", "--vocab-size", "9"],
                               env={**environment, **chosen}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asleep = 0
    while asleep < 5:  # it waits for its input
        time.sleep(0.1)
        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
            asleep = asleep + 1 if file.read().rsplit(") ", 1)[1][0] == "S" else 0
    with open(f"/proc/{process.pid}/environ", encoding="utf-8") as file:
        values = dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    return values.get("OMP_WAIT_POLICY")


def test_threads_wait_passively_by_default():
    assert policy() == "PASSIVE"


def test_a_chosen_policy_stays():
    assert policy(OMP_WAIT_POLICY="ACTIVE") == "ACTIVE"
    assert policy(GOMP_SPINCOUNT="100") is None
