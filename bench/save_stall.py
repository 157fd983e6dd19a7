"""Measures how much saving a checkpoint holds training up: GPT 1.5B on mock data, on one GPU.

    python3 bench/save_stall.py --teratron ./teratron --folder /disk/with/60/GB

Needs the program and Python's standard library only. One run saves in the background (--async-save), from early on
and again later, one saves synchronously; then as many writers as the program has (8) write as many bytes with fsync
to the same disk. Prints a table of figures and targets; exits with 1 unless all targets are met.

  stall      time of the steps before and after the start of the save, beyond two median steps: results are read while
             the next step is launched, but before a save at once. It may be 0.05 s more than what cannot be hidden:
             bytes / rate of copies from the GPU - time of forward and backward
  writing    bytes / time from the start of a save to its commit; at least 0.8 of what the plain writers reach
  throughput steps while a checkpoint is written, the one after its start left out; at least 0.98 of the median step
"""
import argparse
import calendar
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

MODEL = ["--model-preset", "gpt2-xl", "--seq-length", "1024", "--bf16", "--tokenizer-type", "NullTokenizer",
         "--vocab-size", "50256", "--mock-data", "--micro-batch-size", "8", "--global-batch-size", "32", "--lr", "1e-4",
         "--lr-decay-style", "constant", "--eval-iters", "0", "--hidden-dropout", "0", "--attention-dropout", "0",
         "--log-interval", "1000"]
TINY = ["--num-layers", "4", "--hidden-size", "256", "--num-attention-heads", "4", "--seq-length", "64",
        "--max-position-embeddings", "64", "--tokenizer-type", "NullTokenizer", "--vocab-size", "5000", "--mock-data",
        "--micro-batch-size", "2", "--global-batch-size", "2", "--lr", "1e-4", "--eval-iters", "0", "--device", "cpu",
        "--num-threads", "1", "--log-interval", "1000"]
WRITERS = 8
GB = 1e9


def events(run, kind):
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == kind]


def seconds_of(event):
    whole, fraction = event["time"].rstrip("Z").split(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float("0." + fraction)


def train(options, run, iterations, *more):
    shutil.rmtree(run, ignore_errors=True)
    command = [*options.teratron.split(), "pretrain", "gpt", *(TINY if options.tiny else MODEL), "--train-iters",
               str(iterations), "--run-dir", str(run), *more]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {result.returncode}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")


def forward_and_backward(options):
    """Seconds of forward and backward in a step."""
    run = options.folder / "timers"
    train(options, run, 30, "--timing-log-level", "1", "--log-interval", "10")
    return events(run, "timers")[-1]["milliseconds"]["forward-backward"]["max"] / 1e3


def copy_rate():
    """Bytes per second from the GPU to pinned host memory, through the driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    size, device, context = 1 << 30, ctypes.c_void_p(), ctypes.c_void_p()
    host, gpu = ctypes.c_void_p(), ctypes.c_int()
    calls = [lambda: cuda.cuInit(0), lambda: cuda.cuDeviceGet(ctypes.byref(gpu), 0),
             lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu), lambda: cuda.cuCtxSetCurrent(context),
             lambda: cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(size)),
             lambda: cuda.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(size), 0)]
    if any(call() != 0 for call in calls):
        return None
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        if cuda.cuMemcpyDtoH_v2(host, device, ctypes.c_size_t(size)) != 0:
            return None
        times.append(time.perf_counter() - begin)
    cuda.cuMemFreeHost(host)
    cuda.cuMemFree_v2(device)
    cuda.cuDevicePrimaryCtxRelease_v2(gpu)
    return size / min(times)


def disk_rate(folder, size):
    """Bytes per second of WRITERS threads that each write a file and fsync it."""
    folder.mkdir(parents=True, exist_ok=True)
    block = memoryview(os.urandom(4 << 20))
    each = max(size // WRITERS // len(block), 1)

    def write(number):
        descriptor = os.open(folder / f"{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        for _ in range(each):
            done = 0
            while done < len(block):
                done += os.write(descriptor, block[done:])
        os.fsync(descriptor)
        os.close(descriptor)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = WRITERS * each * len(block) / (time.perf_counter() - begin)
    shutil.rmtree(folder)
    return rate


def background_saves(options, first, interval):
    """Median step; for each save that was written during training: bytes, seconds, stall, steps meanwhile."""
    run = options.folder / "async"
    train(options, run, first + 2 * interval, "--save", str(run), "--save-interval", str(interval), "--async-save",
          "--save-retain-interval", "1000000")
    steps, saves = events(run, "step"), events(run, "save")
    ends = {step["iteration"]: seconds_of(step) for step in steps}
    took = {number: ends[number] - ends[number - 1] for number in ends if number - 1 in ends}
    busy, found = set(), []
    for save in saves:
        begin, committed = save["iteration"], seconds_of(save)
        if begin + 1 not in took:
            continue  # the last one: nothing was trained meanwhile
        during = [number for number in took if number > begin and ends[number] <= committed]
        busy.update(during, [begin, begin + 1])
        found.append((save, took[begin] + took[begin + 1], [took[number] for number in during if number != begin + 1]))
    median = statistics.median(took[number] for number in took if number not in busy and number > 5)
    size = sum(path.stat().st_size for path in run.glob("iter_*/*.safetensors"))
    shutil.rmtree(run)
    return median, size, [(save["bytes"] / save["seconds"], steps - 2 * median, median * len(during) / sum(during) if during else None)
                          for save, steps, during in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teratron", default="./run teratron", help="how to start the program")
    parser.add_argument("--folder", type=Path, default=Path("save_stall"), help="on the disk to measure; removed at the end")
    parser.add_argument("--interval", type=int, default=60, help="iterations between two saves")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU: tries the script out")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []

    def row(name, value, target="", met=True):
        rows.append((name, value, target, "" if not target else "yes" if met else "NO"))

    copy, compute = copy_rate(), forward_and_backward(options)
    row("copies from the GPU", f"{copy / GB:.1f} GB/s" if copy else "no GPU")
    row("forward and backward", f"{compute:.3f} s")
    median, size, saves = background_saves(options, options.interval // 2, options.interval)
    row("median step", f"{median:.3f} s")
    row("checkpoint", f"{size / GB:.2f} GB")
    before = disk_rate(options.folder / "disk", size)
    run = options.folder / "sync"
    train(options, run, 12, "--save", str(run), "--save-interval", "1000000")
    save = events(run, "save")[-1]
    shutil.rmtree(run)
    disk = max(before, disk_rate(options.folder / "disk", size))
    row(f"{WRITERS} plain writers with fsync", f"{disk / GB:.2f} GB/s")
    rate = save["bytes"] / save["seconds"]
    row("synchronous save", f"{save['seconds']:.2f} s, {rate / GB:.2f} GB/s", f">= {0.8 * disk / GB:.2f} GB/s", rate >= 0.8 * disk)
    limit = 0.05 + max(0.0, size / copy - compute if copy else 0.0)
    for number, (rate, stall, throughput) in enumerate(saves, 1):
        name = f"background save {number}"
        row(f"{name}: stall", f"{stall:.3f} s", f"<= {limit:.3f} s", stall <= limit)
        row(f"{name}: writing", f"{rate / GB:.2f} GB/s", f">= {0.8 * disk / GB:.2f} GB/s", rate >= 0.8 * disk)
        if throughput:
            row(f"{name}: throughput", f"{throughput:.3f}", ">= 0.980", throughput >= 0.98)
    shutil.rmtree(options.folder, ignore_errors=True)
    widths = [max(len(line[i]) for line in rows) for i in range(4)]
    for line in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    return any(line[3] == "NO" for line in rows) or not saves


if __name__ == "__main__":
    sys.exit(main())
