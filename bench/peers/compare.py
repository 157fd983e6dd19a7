"""Ours and the peers in turn on the same machine: A B C A B C. Prints each figure, the medians and the ratios.

    python3 bench/peers/compare.py --teratron "./run teratron" --shape gpt2-124m
    python3 bench/peers/compare.py --teratron "./run teratron" --shape llama3-8b --gpus 4
    python3 bench/peers/compare.py --teratron "./run teratron" --shape llama-56m --gpus 0 --precision fp32 --steps 5
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ONE_DEVICE = Path(__file__).with_name("torch_gpt.py")
FLOOR = Path(__file__).with_name("floor.py")
SEVERAL_GPUS = Path(__file__).with_name("torch_fsdp.py")
FP8 = ["--fp8-format", "hybrid", "--fp8-amax-history-len", "16", "--fp8-amax-compute-algo", "max"]


def ours(args, *flags):
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        launch = ["launch", "--nproc-per-node", str(args.gpus), "--"] if args.gpus > 1 else []
        command = [*args.teratron.split(), *launch, "bench", "--shape", args.shape, "--json", result,
                   "--steps", str(args.steps), "--warm-up-seconds", str(args.warm_up_seconds),
                   "--profiled-steps", "0", "--precision", args.precision, *micro_batch_flags(args),
                   *size_flags(args), *data_parallel_flags(args), *flags]
        require_success(subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode)
        return parsed(result.read_text() if result.exists() else "")


def micro_batch_flags(args):
    return ["--num-micro-batches", str(args.micro_batches)] if args.micro_batches > 1 else []


def size_flags(args):
    return ["--micro-batch-size", str(args.micro_batch_size)] if args.micro_batch_size else []


def data_parallel_flags(args):
    return ["--use-distributed-optimizer", "--overlap-param-gather"] if args.gpus > 1 else []


def started(args, program, *flags, launcher=(), environment=None):
    command = [sys.executable, *launcher, program, "--shape", args.shape, *flags, "--steps", str(args.steps),
               "--micro-batches", str(args.micro_batches), "--warm-up-seconds", str(args.warm_up_seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})


class Failed(Exception):
    """A contestant gave no result."""


def parsed(text):
    try:
        result = json.loads(text)
        return {name: float(result[name]) for name in ("tokens_per_second", "step_ms")}
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"said {text[:80]!r} where its result should be") from error


def require_success(code):
    if code != 0:
        raise Failed(f"failed with exit code {code}")


def result_of(process):
    output = process.communicate()[0]
    require_success(process.returncode)
    return parsed((output.splitlines() or [""])[-1])


def peer(args, program, *flags, launcher=()):
    return result_of(started(args, program, *flags, launcher=launcher))


def floor(args):
    """All GPUs at once: a step of a job lasts as long as the slowest needs."""
    flags = ["--ranks", str(args.gpus)]
    if args.gpus == 1:
        return peer(args, FLOOR, *flags)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(args.gpus)))).split(",")[:args.gpus]
    assert len(visible) == args.gpus, f"CUDA_VISIBLE_DEVICES names {len(visible)} of {args.gpus} GPUs"
    processes = [started(args, FLOOR, *flags, environment={"CUDA_VISIBLE_DEVICES": gpu}) for gpu in visible]
    try:
        return min(map(result_of, processes), key=lambda result: result["tokens_per_second"])
    finally:
        for process in processes:
            process.kill()


def contestants(args):
    result = {"teratron": lambda: ours(args)}
    if args.fp8:
        result["teratron, FP8"] = lambda: ours(args, *FP8)
        result["teratron, FP8, output layer too"] = lambda: ours(args, *FP8, "--fp8-output-proj")
    if args.gpus > 1:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(args.gpus)]
        result["FSDP2 + torch.compile"] = lambda: peer(args, SEVERAL_GPUS, launcher=launcher)
    elif args.gpus == 1:
        result["torch.compile, fp32 masters"] = lambda: peer(args, ONE_DEVICE, "--masters", "fp32")
        result["torch.compile, all bf16"] = lambda: peer(args, ONE_DEVICE, "--masters", "bf16")
    else:
        flags = ["--device", "cpu", "--precision", args.precision, *size_flags(args)]
        result[f"torch.compile, {args.precision}"] = lambda: peer(args, ONE_DEVICE, *flags)
        return result
    result["floor"] = lambda: floor(args)
    return result


def measure(contestants, rounds):
    """The speeds of each, and the names of those that failed once, whose output says why; they run no more."""
    speeds, failed = {name: [] for name in contestants}, []
    for _ in range(rounds):
        for name in speeds:
            if name in failed:
                continue
            try:
                result = contestants[name]()
            except Failed as error:
                print(f"{name:<36} {error}; the others go on", flush=True)
                failed.append(name)
                continue
            speeds[name].append(result["tokens_per_second"])
            print(f"{name:<36}{result['tokens_per_second']:>12.0f} tokens/s{result['step_ms']:>10.2f} ms", flush=True)
    return speeds, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teratron", default="teratron", help="command that starts teratron")
    parser.add_argument("--shape", default="gpt2-124m")
    parser.add_argument("--gpus", type=int, default=1, help="of this machine; more than one: data parallel; 0: the CPU")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16", help="fp32: with --gpus 0 only")
    parser.add_argument("--fp8", action="store_true", help="ours in FP8, too")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--micro-batch-size", type=int, help="with --gpus 0 only; default: the shape's")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up-seconds", type=float, default=10.0)
    args = parser.parse_args()
    if args.gpus < 0:
        parser.error("--gpus counts GPUs; 0 stands for the CPU")
    if args.gpus > 0 and (args.micro_batch_size or args.precision != "bf16"):
        parser.error("--micro-batch-size and --precision go with --gpus 0: the peers on GPUs have the shape's size and bf16")
    if args.gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    speeds, failed = measure(contestants(args), args.rounds)
    medians = {name: statistics.median(values) for name, values in speeds.items() if values}
    for name, median in medians.items():
        ratio = f"; teratron is {medians['teratron'] / median:.3f} times that" if "teratron" in medians else ""
        print(f"{name:<36}{median:>12.0f} tokens/s in the median{ratio}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
