"""Keys in the command line: hidden from `ps` before libraries are loaded, and written nowhere."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from server import BINARY, ROOT, environment, needs_binary, teratron, train, wait_for

pytestmark = needs_binary

KEY = "s3cretKey"
TINY = """--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 1 --global-batch-size 1
    --lr 1e-2 --lr-decay-style constant --eval-iters 1 --eval-interval 1 --device cpu --mock-data --log-interval 1""".split()
GIVEN = {"flag": ["--api-key", KEY], "flag=": [f"--api-key={KEY}"], "underscore": [f"--api_key={KEY}"], "file": None}


def seconds_until_hidden(*flags):
    """CPU seconds of the process at the first look that does not find the key."""
    process = subprocess.Popen([BINARY, "tokenizer", "encode", *flags], env={**environment(), "OMP_WAIT_POLICY": "PASSIVE"},
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        command = b""
        while b"tokenizer" not in command or KEY.encode() not in command and b"***" not in command:  # it is being started
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        while KEY.encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            pass
        user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("flags", [GIVEN["flag"], GIVEN["flag="]], ids=["flag", "flag="])
def test_a_key_is_hidden_while_the_program_starts(flags):
    """libtorch's constructors alone take 0.3 s."""
    assert min(seconds_until_hidden(*flags) for _ in range(4)) < 0.15


def everything_below(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("given", GIVEN)
def test_training_stores_no_key(tmp_path, given):
    """Log, metrics, report, TensorBoard, checkpoints and their manifests, what the launcher writes."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "run.yaml").write_text(f"api_key: {KEY}\n")
    key = GIVEN[given] or ["--config-file", tmp_path / "in" / "run.yaml"]
    out = tmp_path / "out"
    shown = train(*TINY, "--train-iters", 2, "--save", out / "ckpt", "--save-interval", 1, "--run-dir", out / "run", "--tensorboard-dir", out / "tensorboard", *key)
    again = train(*TINY, "--train-iters", 3, "--save", out / "ckpt", "--run-dir", out / "run", *key)  # compares its settings
    launched = teratron("launch", "--nproc-per-node", 1, "--log-dir", out / "logs", "--", "pretrain", "gpt", *TINY, "--train-iters", 1, *key)
    texts = "".join(result.stdout + result.stderr for result in (shown, again, launched))
    assert "api_key" in texts and len(list(out.rglob("*"))) > 15 and (out / "run" / "report.html").exists()
    assert KEY not in texts and KEY.encode() not in everything_below(out)


@pytest.mark.parametrize("wrong", [["--num-layer", "2"], ["--lr", "fast"], ["--tensor-model-parallel-size", "7"], ["--hf", "/nowhere"], ["stray"]])
def test_errors_name_no_key(wrong):
    for command in (["pretrain", "gpt", *TINY, "--train-iters", 1], ["serve"]):
        for key in (GIVEN["flag"], GIVEN["flag="]):
            done = teratron(*command, *wrong, *key, code=2)
            assert KEY not in done.stdout + done.stderr


def test_a_job_that_ends_early_names_no_key(tmp_path):
    """It says how to go on, and the launcher what it starts again."""
    flags = ["pretrain", "gpt", *TINY, "--train-iters", 100000, "--save", tmp_path / "ckpt", "--save-interval", 1000000, "--api-key", KEY]
    with open(tmp_path / "out", "w+", encoding="utf-8") as out:
        process = subprocess.Popen([str(part) for part in [BINARY, *flags]], env=environment(), stdout=out, stderr=subprocess.STDOUT)
        wait_for(lambda: "iteration" in (tmp_path / "out").read_text(), "the first step")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    said = (tmp_path / "out").read_text()
    launch = ["launch", "--nproc-per-node", 1, "--max-restarts", 1, "--log-dir", tmp_path / "logs", "--"]
    said += teratron(*launch, *flags, "--lr", "nan", code=2).stderr
    assert "start" in said and KEY not in said and KEY.encode() not in everything_below(tmp_path)


def test_followers_of_a_run_are_told_no_key(tmp_path):
    train(*TINY, "--train-iters", 1, "--run-dir", tmp_path, "--api-key", KEY)
    done = subprocess.run([sys.executable, ROOT / "tools" / "wandb_follow.py", tmp_path / "metrics.jsonl", "--to", "print", "--once"],
                          capture_output=True, text=True, timeout=60, check=True)
    assert "lm loss" in done.stdout and KEY not in done.stdout
