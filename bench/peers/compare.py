"""Times teratron and its peers alternately on one machine (A B C A B C); prints figures, medians and ratios.

    python3 bench/peers/compare.py --teratron "./run teratron" --shape gpt2-124m
    python3 bench/peers/compare.py --teratron "./run teratron" --shape llama3-8b --gpus 4
    python3 bench/peers/compare.py --teratron "./run teratron" --shape llama3-8b-12l --gpus 2 --sequence 32768 --recompute
    python3 bench/peers/compare.py --teratron "./run teratron" --shape llama-56m --gpus 0 --steps 5
    python3 bench/peers/compare.py --teratron "./run teratron" --shape bert-large --dropout 0.1
    python3 bench/peers/compare.py --teratron "./run teratron" --shape t5-base-relative

Writes the medians to a new file in bench/results (or --results FOLDER); results_table.py describes the format
and generates the tables of docs/performance.md from those files.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import results_table

ONE_DEVICE = Path(__file__).with_name("torch_gpt.py")
ONE_DEVICE_BERT = Path(__file__).with_name("torch_bert.py")
ONE_DEVICE_T5 = Path(__file__).with_name("torch_t5.py")
ONE_DEVICE_MOE = Path(__file__).with_name("torch_moe.py")
FLOOR = Path(__file__).with_name("floor.py")
SEVERAL_GPUS = Path(__file__).with_name("torch_fsdp.py")
LONG_SEQUENCE = Path(__file__).with_name("torch_context_parallel.py")
FP8 = ["--fp8-format", "hybrid", "--fp8-amax-history-len", "16", "--fp8-amax-compute-algo", "max"]
FP32_MASTERS, ALL_BF16, FSDP2 = "torch.compile, fp32 masters", "torch.compile, all bf16", "FSDP2 + torch.compile"
CONTEXT_PARALLEL = "context_parallel + FSDP2 + torch.compile"
GROUPED_MM = f"{FP32_MASTERS}, _grouped_mm"
EXPERTS = ("qwen3-30b-a3b-4l", "mixtral-8x7b-2l")
MASKED_POSITIONS = f"{FP32_MASTERS}, masked positions"
TOKENS_OF_A_LOSS_CHUNK = 2048
# (shape, GPUs), with dropout (shape, GPUs, "dropout"), a long sequence (shape, GPUs, "context"): speed relative to a peer, or tokens per second.
GOALS = {
    ("gpt-1.5b", 1): {f"teratron / {FP32_MASTERS}": 1.10, f"teratron / {ALL_BF16}": 1.03, "teratron / floor": 0.95},
    ("llama3-8b-12l", 1): {f"teratron / {FP32_MASTERS}": 1.10, f"teratron / {ALL_BF16}": 1.02, "teratron / floor": 0.95,
                           "teratron, FP8 / teratron": 1.35, "teratron, FP8, output layer too / teratron": 1.35,
                           "teratron, FP8": 38000, "teratron, FP8, output layer too": 38000},
    ("gpt2-124m", 1): {f"teratron / {FP32_MASTERS}": 1.15, f"teratron / {ALL_BF16}": 1.15, "teratron": 580000},
    ("bert-large", 1): {f"teratron / {FP32_MASTERS}": 1.25, f"teratron / {MASKED_POSITIONS}": 1.10},
    ("bert-large", 1, "dropout"): {f"teratron / {FP32_MASTERS}": 1.0, f"teratron / {MASKED_POSITIONS}": 1.0},
    ("t5-base", 1): {f"teratron / {FP32_MASTERS}": 1.15},
    ("t5-base-relative", 1): {f"teratron / {FP32_MASTERS}": 1.35},
    ("qwen3-30b-a3b-4l", 1): {f"teratron / {GROUPED_MM}": 1.30, "teratron / floor": 0.80},
    ("mixtral-8x7b-2l", 1): {"teratron / floor": 0.90},
    ("llama3-8b-12l", 2, "context"): {f"teratron / {CONTEXT_PARALLEL}": 1.15, "teratron / floor": 0.88},
    ("llama3-8b-12l", 4, "context"): {"teratron / floor": 0.85},
    ("llama3-8b", 4): {f"teratron / {FSDP2}": 1.12, "teratron / floor": 0.93, "teratron, FP8 / teratron": 1.35},
}


def ours(args, *flags):
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        launch = ["launch", "--nproc-per-node", str(args.gpus), "--"] if args.gpus > 1 else []
        command = [*args.teratron.split(), *launch, "bench", "--shape", args.shape, "--json", result,
                   "--steps", str(args.steps), "--warm-up-seconds", str(args.warm_up_seconds),
                   "--profiled-steps", "0", "--precision", args.precision, *micro_batch_flags(args),
                   *size_flags(args), *data_parallel_flags(args), *context_parallel_flags(args), *dropout_flags(args), *flags]
        require_success(subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode)
        return parsed(result.read_text() if result.exists() else "")


def micro_batch_flags(args):
    return ["--num-micro-batches", str(args.micro_batches)] if args.micro_batches > 1 else []


def size_flags(args):
    return ["--micro-batch-size", str(args.micro_batch_size)] if args.micro_batch_size else []


def dropout_flags(args):
    return ["--hidden-dropout", str(args.dropout), "--attention-dropout", str(args.dropout)] if args.dropout else []


def data_parallel_flags(args):
    return ["--use-distributed-optimizer", "--overlap-param-gather"] if args.gpus > 1 else []


def loss_chunks(args):
    """Of the part of a sequence that one GPU has."""
    return str(max(1, args.sequence // args.gpus // TOKENS_OF_A_LOSS_CHUNK))


def context_parallel_flags(args):
    """One long sequence over all GPUs."""
    if not args.sequence:
        return []
    length = str(args.sequence)
    return ["--context-parallel-size", str(args.gpus), "--seq-length", length, "--max-position-embeddings", length,
            "--micro-batch-size", "1", "--loss-chunks", loss_chunks(args),
            *(["--recompute-granularity", "full"] if args.recompute else [])]


def started(args, program, *flags, launcher=(), environment=None):
    command = [sys.executable, *launcher, program, "--shape", args.shape, *flags, "--steps", str(args.steps),
               "--micro-batches", str(args.micro_batches), "--warm-up-seconds", str(args.warm_up_seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})


class Failed(Exception):
    """A program returned no result."""


def parsed(text):
    try:
        result = json.loads(text)
        speeds = {name: float(result[name]) for name in ("tokens_per_second", "step_ms")}
        return {"device": str(result.get("device", "")), **speeds}
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"printed {text[:80]!r} instead of a result") from error


def require_success(code):
    if code != 0:
        raise Failed(f"failed with exit code {code}")


def result_of(process):
    output = process.communicate()[0]
    require_success(process.returncode)
    return parsed((output.splitlines() or [""])[-1])


def peer(args, program, *flags, launcher=()):
    return result_of(started(args, program, *flags, launcher=launcher))


def long_sequence_flags(args):
    if not args.sequence:
        return []
    return ["--sequence", str(args.sequence), "--context-ranks", str(args.gpus), *(["--recompute"] if args.recompute else [])]


def floor(args):
    """Of the slowest GPU, all running at the same time: the slowest determines the step time of a job."""
    flags = ["--ranks", str(args.gpus), *long_sequence_flags(args)]
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


def bert_peers(args):
    """With logits of all positions, and of the masked ones alone."""
    flags = ["--dropout", str(args.dropout), "--precision", args.precision, *size_flags(args),
             "--device", "cuda" if args.gpus else "cpu"]
    return {FP32_MASTERS: lambda: peer(args, ONE_DEVICE_BERT, "--head", "all", *flags),
            MASKED_POSITIONS: lambda: peer(args, ONE_DEVICE_BERT, "--head", "masked", *flags)}


def contestants(args):
    result = {"teratron": lambda: ours(args)}
    if args.fp8:
        result["teratron, FP8"] = lambda: ours(args, *FP8)
        result["teratron, FP8, output layer too"] = lambda: ours(args, *FP8, "--fp8-output-proj")
    if args.shape.startswith("bert"):
        return {**result, **bert_peers(args)}
    if args.shape.startswith("t5"):
        flags = ["--precision", args.precision, *size_flags(args), "--device", "cuda" if args.gpus else "cpu"]
        return {**result, FP32_MASTERS: lambda: peer(args, ONE_DEVICE_T5, *flags)}
    if args.shape in EXPERTS:
        return {**result, GROUPED_MM: lambda: peer(args, ONE_DEVICE_MOE), "floor": lambda: floor(args)}
    if args.gpus > 1:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(args.gpus)]
        if args.sequence:
            flags = ["--sequence", str(args.sequence), "--loss-chunks", loss_chunks(args), *(["--recompute"] if args.recompute else [])]
            return {**result, CONTEXT_PARALLEL: lambda: peer(args, LONG_SEQUENCE, *flags, launcher=launcher),
                    "floor": lambda: floor(args)}
        result[FSDP2] = lambda: peer(args, SEVERAL_GPUS, launcher=launcher)
    elif args.gpus == 1:
        result[FP32_MASTERS] = lambda: peer(args, ONE_DEVICE, "--masters", "fp32")
        result[ALL_BF16] = lambda: peer(args, ONE_DEVICE, "--masters", "bf16")
    else:
        flags = ["--device", "cpu", "--precision", args.precision, *size_flags(args)]
        result[f"torch.compile, {args.precision}"] = lambda: peer(args, ONE_DEVICE, *flags)
        return result
    result["floor"] = lambda: floor(args)
    return result


def measure(contestants, rounds):
    """(results of each contestant, names of those that failed). One that fails once does not run again."""
    results, failed = {name: [] for name in contestants}, []
    for _ in range(rounds):
        for name in results:
            if name in failed:
                continue
            try:
                result = contestants[name]()
            except Failed as error:
                print(f"{name:<36} {error}; the others continue", flush=True)
                failed.append(name)
                continue
            results[name].append(result)
            print(f"{name:<36}{result['tokens_per_second']:>12.0f} tokens/s{result['step_ms']:>10.2f} ms", flush=True)
    return results, failed


def cpu_name():
    info = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return models[0] if models else "CPU"


def commit():
    command = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def record(args, medians, device):
    """The medians in the format of results_table.py."""
    ours = {name: round(value, 1) for name, value in medians.items() if name.startswith("teratron")}
    peers = {name: round(value, 1) for name, value in medians.items() if name not in ours}
    ratios = {f"teratron / {name}": medians["teratron"] / medians[name] for name in peers}
    ratios |= {f"{name} / teratron": medians[name] / medians["teratron"] for name in ours if name != "teratron"}
    kind = ["dropout"] if args.dropout else ["context"] if args.sequence else []
    shape = args.shape + (f", 1 x {args.sequence}" if args.sequence else "") + (", recompute" if args.recompute else "")
    goals = GOALS.get((args.shape, args.gpus, *kind), {})
    return {"date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "commit": commit(),
            "device": f"{args.gpus} x {device}" if args.gpus else f"{os.cpu_count()} x {cpu_name()}",
            "command": args.command, "shape": shape, "unit": "tokens/s", "ours": ours, "peers": peers,
            "ratios": {name: round(value, 3) for name, value in ratios.items()},
            "goals": {name: value for name, value in goals.items() if name in ratios or name in ours}, "note": ""}


def parsed_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teratron", default="teratron", help="command that starts teratron")
    parser.add_argument("--shape", default="gpt2-124m")
    parser.add_argument("--gpus", type=int, default=1, help="of this machine; more than one: data parallel; 0: the CPU")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16", help="fp32: with --gpus 0 only")
    parser.add_argument("--fp8", action="store_true", help="also run teratron in FP8")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--micro-batch-size", type=int, help="with --gpus 0 only; default: the shape's")
    parser.add_argument("--sequence", type=int, help="tokens of one sequence, cut over several GPUs by context parallelism")
    parser.add_argument("--recompute", action="store_true", help="with --sequence: compute each layer's forward again in backward")
    parser.add_argument("--dropout", type=float, default=0.0, help="of hidden states and of attention; BERT only")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up-seconds", type=float, default=10.0)
    parser.add_argument("--results", type=Path, default=results_table.RESULTS, help="folder of the new JSON file")
    args = parser.parse_args()
    if args.gpus < 0:
        parser.error("--gpus is a number of GPUs, or 0 for the CPU")
    if args.gpus > 0 and (args.micro_batch_size or args.precision != "bf16"):
        parser.error("--micro-batch-size and --precision need --gpus 0: on GPUs the peers have the shape's size and bf16")
    bert = args.shape.startswith("bert")
    if (bert or args.shape.startswith("t5")) and (args.gpus > 1 or args.fp8):
        parser.error("the peers of BERT and T5 run on one GPU or the CPU, and not in FP8")
    if args.shape in EXPERTS and (args.gpus != 1 or args.fp8):
        parser.error("the peers of models with experts run on one GPU, and not in FP8")
    if args.sequence and (args.gpus < 2 or args.fp8 or args.sequence % (2 * args.gpus) != 0):
        parser.error("--sequence needs several GPUs, twice whose number divides it, and not --fp8")
    if args.recompute and not args.sequence:
        parser.error("--recompute needs --sequence")
    if args.dropout and not bert:
        parser.error("--dropout needs a BERT: the other peers have none")
    given = {name: value for name, value in vars(args).items()
             if name not in ("teratron", "shape", "results") and value != parser.get_default(name)}
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}") for name, value in given.items()]
    args.command = " ".join([f"bench/peers/compare.py --shape {args.shape}", *flags])
    return args


def main():
    args = parsed_arguments()
    if args.gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    results, failed = measure(contestants(args), args.rounds)
    medians = {name: statistics.median(result["tokens_per_second"] for result in of_one)
               for name, of_one in results.items() if of_one}
    for name, median in medians.items():
        ratio = f"; teratron is {medians['teratron'] / median:.3f} times as fast" if "teratron" in medians else ""
        print(f"{name:<36}{median:>12.0f} tokens/s in the median{ratio}")
    if "teratron" in medians:
        path = results_table.write(record(args, medians, results["teratron"][0]["device"]), args.results)
        print(f"wrote {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
