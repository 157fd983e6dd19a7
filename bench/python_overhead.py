#!/usr/bin/env python3
"""Seconds of a training step: by the command, by Trainer.step() of Python, and with the loss in Python.

Run with the Python that the wheel is installed for (docs/python.md):

    python bench/python_overhead.py --device cuda --bf16 --micro-batch-size 16 --global-batch-size 16 --steps 60
    python bench/python_overhead.py --device cpu --model-preset gpt2 --seq-length 64 --steps 8 --rounds 3

Prints a JSON line: medians over the steps after --warm-up, of the rounds' best, and their ratios to the command's.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import teratron


class SameLoss(teratron.TrainStep):
    """The model's loss, in Python."""

    def loss(self, losses, batch):
        mask = batch.loss_mask
        return (losses * mask).sum(), mask.sum()


def settings_of(args, extra):
    flags = ["--model-preset", args.model_preset, "--mock-data", "--device", args.device, "--train-iters", str(args.steps),
             "--micro-batch-size", str(args.micro_batch_size), "--global-batch-size", str(args.global_batch_size), "--lr", "1e-4",
             "--hidden-dropout", "0", "--attention-dropout", "0", "--eval-iters", "0", "--log-interval", "1000000"]
    if args.seq_length:
        flags += ["--seq-length", str(args.seq_length)]
    return flags + (["--bf16"] if args.bf16 else []) + extra


def median(seconds, warm_up):
    if len(seconds) <= warm_up:
        sys.exit(f"python_overhead.py: {len(seconds)} steps were measured, and --warm-up takes {warm_up}: raise --steps")
    return statistics.median(seconds[warm_up:])


def by_command(flags, warm_up):
    """Device seconds between the ends of steps, from metrics.jsonl."""
    program = Path(sys.executable).with_name("teratron")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "pretrain", "gpt", *flags, "--run-dir", folder], check=True, stdout=subprocess.DEVNULL)
        events = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        return median([event["seconds"] for event in events if event["type"] == "step"], warm_up)


def by_python(flags, warm_up, step):
    seconds = []
    with teratron.Trainer(teratron.Config(flags), train_step=step) as trainer:
        before = time.perf_counter()
        while trainer.iteration < trainer.train_iters:
            trainer.step()
            now = time.perf_counter()
            seconds.append(now - before)
            before = now
    return median(seconds, warm_up)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"model-preset": "gpt2", "device": "cuda"}.items():
        parser.add_argument(f"--{name}", default=value)
    for name, value in {"micro-batch-size": 1, "global-batch-size": 1, "steps": 60, "warm-up": 5, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seq-length", type=int)
    parser.add_argument("--bf16", action="store_true")
    args, extra = parser.parse_known_args()
    flags = settings_of(args, extra)
    best = {}
    for _ in range(args.rounds):  # in turn, so that a busy machine slows all alike
        for name, measure in (("command", lambda: by_command(flags, args.warm_up)),
                              ("step", lambda: by_python(flags, args.warm_up, None)),
                              ("python_loss", lambda: by_python(flags, args.warm_up, SameLoss))):
            best[name] = min(best.get(name, float("inf")), measure())
    ratios = {f"{name}_over_command": best[name] / best["command"] for name in ("step", "python_loss")}
    print(json.dumps({"seconds": best, **ratios}))


if __name__ == "__main__":
    main()
