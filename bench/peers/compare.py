"""Ours and the peers in turn on the same GPU: A B C A B C. Prints each figure, the medians and the ratios.

    python3 bench/peers/compare.py --teratron ./run --shape gpt2-124m
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PEER = Path(__file__).with_name("torch_gpt.py")


def ours(args):
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        subprocess.run([*args.teratron.split(), "bench", "--shape", args.shape, "--json", result,
                        "--steps", str(args.steps), "--warm-up-seconds", str(args.warm_up_seconds),
                        "--profiled-steps", "0", *micro_batch_flags(args)],
                       check=True, stdout=subprocess.DEVNULL)
        return json.loads(result.read_text())


def micro_batch_flags(args):
    return ["--num-micro-batches", str(args.micro_batches)] if args.micro_batches > 1 else []


def peer(args, masters):
    command = [sys.executable, PEER, "--shape", args.shape, "--masters", masters, "--steps", str(args.steps),
               "--micro-batches", str(args.micro_batches), "--warm-up-seconds", str(args.warm_up_seconds)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teratron", default="teratron", help="command that starts teratron")
    parser.add_argument("--shape", default="gpt2-124m")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up-seconds", type=float, default=10.0)
    args = parser.parse_args()
    contestants = {
        "teratron": lambda: ours(args),
        "torch.compile, fp32 masters": lambda: peer(args, "fp32"),
        "torch.compile, all bf16": lambda: peer(args, "bf16"),
    }
    speeds = {name: [] for name in contestants}
    for round_number in range(args.rounds):
        for name, measure in contestants.items():
            result = measure()
            speeds[name].append(result["tokens_per_second"])
            print(f"{name:<30}{result['tokens_per_second']:>12.0f} tokens/s{result['step_ms']:>10.2f} ms", flush=True)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, median in medians.items():
        print(f"{name:<30}{median:>12.0f} tokens/s in the median; teratron is {medians['teratron'] / median:.3f} times that")


if __name__ == "__main__":
    main()
