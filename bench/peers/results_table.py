"""Benchmark results: JSON files in bench/results/, and the tables of docs/performance.md generated from them.

    python3 bench/peers/results_table.py        # rewrites the tables

A file holds one comparison, measured in one run on one machine:

    date     YYYY-MM-DD
    commit   of the program; "" if it was not recorded
    device   "1 x NVIDIA H200"
    command  that reproduces it
    shape    the model's name in `teratron bench --shape`, or the input
    unit     of the values: "tokens/s" or "MB/s" (higher is better), or "ms/step" (lower is better)
    ours     {contestant: median}
    peers    {contestant: median}
    ratios   {"A / B": speed of A divided by the speed of B}
    goals    {"A / B": the ratio, or "A": the value, that was aimed at}
    note     anything else needed to read the figures, or ""

compare.py writes these files.
"""
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DOCUMENT = ROOT / "bench" / "results", ROOT / "docs" / "performance.md"
TEXTS = ("date", "commit", "device", "command", "shape", "unit", "note")
NUMBERS = ("ours", "peers", "ratios", "goals")
UNITS = ("tokens/s", "MB/s", "ms/step")
COLUMNS = ("model or input", "ours", "peer", "ratio", "goal", "on", "date")
# The tables, by the question that they answer, and which results they take: the first whose pattern is in shape or unit.
QUESTIONS = {"tokenizer": "MB/s", "generate": "^generate|streaming", "experts": "mixtral|qwen3-30b",
             "long-sequences": r"1 x \d{5}", "train": ""}
# What the tables write shorter.
SHORT = [(r"^teratron(?: preprocess)?, ", ""), (r"context_parallel", "CP"), (r"^torch\.compile", "torch"),
         (r"^(.*) \+ torch\.compile$", r"torch, \1"), (r"^generate, |, 1 x 8192$|, 4 micro-batches(?=,)|, before sum_rows", ""),
         (r", one GPU$|, all_gather$|, distributed optimizer|^its |^published by ", ""), (r"--no-(\w+)-.*", r"no \1"),
         (r"forward and backward of a GPU", "fwd + bwd"), (r"layers offloaded", "offloaded"),
         (r"1 x NVIDIA (H\d+).*", r"\1"),
         (r"(\d) x NVIDIA (H\d+).*", r"\1 \2"), (r"(\d) virtual cores of an (?:AMD|Intel) (\w+) .*", r"\1 cores, \2"),
         (r"1 of 2 virtual cores", "1 core"), (r" virtual cores", " cores")]


def check(result):
    """Raises ValueError where `result` does not follow the schema."""
    if sorted(result) != sorted((*TEXTS, *NUMBERS)):
        raise ValueError(f"has the keys {sorted(result)}")
    if not all(isinstance(result[name], str) for name in TEXTS) or result["unit"] not in UNITS:
        raise ValueError(f"{TEXTS} are strings, and the unit is one of {UNITS}")
    for name in NUMBERS:
        if not all(isinstance(value, (int, float)) for value in result[name].values()):
            raise ValueError(f"{name} maps names to numbers")
    values = {**result["ours"], **result["peers"]}
    compared = {name for key in (*result["ratios"], *result["goals"]) for name in key.split(" / ")}
    if not result["ours"] or not compared <= set(values):
        raise ValueError(f"has no values of ours, or none of {sorted(compared - set(values))}")


def write(result, folder=RESULTS):
    """Writes a new file in the folder of its date, never over an older one."""
    check(result)
    day = folder / result["date"]
    day.mkdir(parents=True, exist_ok=True)
    name, number = re.sub(r"[^\w.]+", "-", result["shape"]), 1
    while (path := day / f"{name}-{number}.json").exists():
        number += 1
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def load(folder=RESULTS):
    """All results, those of one shape and device next to each other, the oldest first."""
    results = []
    for path in sorted(folder.glob("*/*.json")):
        result = json.loads(path.read_text())
        try:
            check(result)
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from error
        results.append(result)
    return sorted(results, key=lambda result: (result["shape"], result["device"], result["date"]))


def figure(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def short(text):
    for pattern, replacement in SHORT:
        text = re.sub(pattern, replacement, text)
    return text


def labelled(result, name):
    value = figure({**result["ours"], **result["peers"]}[name])
    unit = "" if result["unit"] == "tokens/s" else " " + result["unit"].removesuffix("/step")
    return f"{short(name)}: {value}{unit}"


def comparisons(result):
    """(ours, peer, ratio, goal) of each ratio."""
    goals = result["goals"]
    for key, ratio in result["ratios"].items():
        a, b = key.split(" / ")
        yield a, b, f"{ratio:.3f}" if ratio < 10 else figure(ratio), f"{goals[key]:.2f}" if key in goals else ""


def question(result):
    """The table that shows a result."""
    return next(name for name, pattern in QUESTIONS.items()
                if re.search(pattern, result["shape"]) or pattern == result["unit"])


def rows(results):
    """The comparisons of the latest result of each model or input, contestant of ours, and number of devices of a kind."""
    latest = {}
    for result in sorted(results, key=lambda result: result["date"]):
        device = re.sub(r"NVIDIA.*", "GPU", result["device"])
        precision = re.search(r"--precision \w+|$", result["command"]).group()
        for ours, *_ in comparisons(result):
            contestant = re.sub(", (NCCL_WIN_ENABLE=0|sequence parallel)", "", ours)
            latest[short(result["shape"]), device, precision, contestant] = result, ours
    for (shape, *_), (result, contestant) in sorted(latest.items(), key=lambda entry: entry[0]):
        for ours, peer, ratio, goal in comparisons(result):
            if ours == contestant:
                yield (shape, labelled(result, ours).removeprefix("teratron: "), labelled(result, peer), ratio, goal,
                       short(result["device"]), result["date"][5:])


def table(results):
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows(results)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)


def with_tables(document, results):
    """The document with the text between each table's two markers replaced."""
    for name in QUESTIONS:
        begin, end = f"<!-- begin: results_table.py {name} -->\n", "\n<!-- end -->"
        before, rest = document.split(begin)
        chosen = [result for result in results if question(result) == name]
        document = f"{before}{begin}{table(chosen)}{end}{rest.split(end, 1)[1]}"
    return document


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(), load()))
