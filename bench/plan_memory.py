"""Compares the peak memory that `teratron plan` states with the one that `teratron bench` measures, on one GPU.

    python3 bench/plan_memory.py --teratron "./run teratron"               # all runs
    python3 bench/plan_memory.py --teratron "./run teratron" fp8 swiglu    # some

Prints GiB, and their ratio; exits with 1 unless all are within 5 %. `reserved` is what PyTorch's allocator has
taken, `process` what nvidia-smi shows for the process: plan's "on GPU" is an estimate of the latter.
"""
import argparse
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

GIB = 2**30
TOLERANCE = 0.05
COMMON = ("--mock-data --tokenizer-type NullTokenizer --train-iters 20000 --lr 1e-4 --lr-decay-style constant "
          "--eval-iters 0 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
          "--max-position-embeddings 1024 --num-micro-batches 2 ")
PLAIN = "--hidden-dropout 0 --attention-dropout 0 "
DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1 "
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
RUNS = {
    "plain": PLAIN + "--micro-batch-size 32 --vocab-size 50256",
    "dropout": DROPOUT + "--micro-batch-size 16 --vocab-size 50256",
    "selective": DROPOUT + "--micro-batch-size 32 --vocab-size 50256 --recompute-granularity selective",
    "full": DROPOUT + FULL + "--micro-batch-size 32 --vocab-size 50256",
    "swiglu": PLAIN + "--hidden-size 2048 --ffn-hidden-size 5504 --group-query-attention --num-query-groups 4 "
              "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 8 --vocab-size 31999 --swiglu "
              "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear "
              "--untie-embeddings-and-output-weights",
    "small-vocabulary": PLAIN + "--micro-batch-size 32 --vocab-size 8191",
    "large-vocabulary": PLAIN + "--micro-batch-size 32 --vocab-size 131071",
    "loss-chunks": PLAIN + "--micro-batch-size 32 --vocab-size 131071 --loss-chunks 8",
    "fp8": PLAIN + "--micro-batch-size 32 --vocab-size 50256 --fp8-format hybrid",
    "fp8-output": PLAIN + "--micro-batch-size 16 --vocab-size 131071 --fp8-format hybrid --fp8-output-proj",
    "offload": PLAIN + "--micro-batch-size 32 --vocab-size 50256 --cpu-offloading-num-layers 16",
    "offload-all-full": PLAIN + FULL + "--micro-batch-size 64 --vocab-size 8191 --cpu-offloading-num-layers 24",
    "full-large": PLAIN + FULL + "--micro-batch-size 64 --vocab-size 8191",
}


def flags_of(run):
    return [*COMMON.split(), *RUNS[run].split()]


def planned(program, run):
    """Peak, and the memory of the process, in GiB."""
    command = [*program, "plan", "gpt", "--world-size", "1", "--gpu-memory", "80", "--bf16", *flags_of(run)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    first = next(i for i, line in enumerate(output) if line.split()[:2] == ["stage", "parameters"])
    row = output[first + 1].split()
    return float(row[7]), float(row[8])


class ProcessMemory(threading.Thread):
    """The most memory that nvidia-smi shows in use, less what was before."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before = self.most = self.used()
        self.done = threading.Event()

    @staticmethod
    def used():
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        try:
            return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout) / 1024
        except (OSError, ValueError, subprocess.CalledProcessError):
            return 0.0

    def run(self):
        while not self.done.wait(0.3):
            self.most = max(self.most, self.used())

    def stop(self):
        self.done.set()
        self.join()
        return self.most - self.before


def measured(program, run):
    """Peak and reserved memory of the allocator, and that of the process, in GiB; and ms per step."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [*program, "bench", "--precision", "bf16", "--steps", "3", "--warm-up-seconds", "0",
                   "--profiled-steps", "0", "--json", str(result), *flags_of(run)]
        process = ProcessMemory()
        process.start()
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        used = process.stop()
        if completed.returncode != 0:
            raise SystemExit(f"{run}: exit code {completed.returncode}\n{completed.stderr[-2000:]}")
        figures = json.loads(result.read_text())
    return figures["memory_bytes"] / GIB, figures["reserved_bytes"] / GIB, used, figures["step_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teratron", default="./run teratron", help="the program")
    parser.add_argument("runs", nargs="*", default=list(RUNS), metavar="RUN", help=f"of {', '.join(RUNS)}")
    args = parser.parse_args()
    program = args.teratron.split()
    print(f"{'run':18}{'planned':>9}{'measured':>10}{'ratio':>8}{'reserved':>10}{'process':>9}{'on GPU':>9}{'ms':>9}")
    good = True
    for run in args.runs:
        peak, on_gpu = planned(program, run)
        allocated, reserved, process, ms = measured(program, run)
        ratio = peak / allocated
        good = good and abs(ratio - 1) <= TOLERANCE
        print(f"{run:18}{peak:9.2f}{allocated:10.2f}{ratio:8.4f}{reserved:10.2f}{process:9.2f}{on_gpu:9.2f}{ms:9.1f}",
              flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
