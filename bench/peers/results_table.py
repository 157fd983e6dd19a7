"""Benchmark results: JSON files in bench/results/, and the table of docs/performance.md generated from them.

    python3 bench/peers/results_table.py        # rewrites the table

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
COLUMNS = ("shape", "ours", "peer", "ratio", "goal", "device", "date", "commit", "command")
BEGIN, END = "<!-- begin: bench/peers/results_table.py -->", "<!-- end: bench/peers/results_table.py -->"


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


def labelled(result, name):
    return f"{name}: {figure({**result['ours'], **result['peers']}[name])}"


def comparisons(result):
    """(ours, peer, ratio, goal) of each ratio."""
    goals = result["goals"]
    for key, ratio in result["ratios"].items():
        a, b = key.split(" / ")
        yield a, b, f"{ratio:.3f}" if ratio < 10 else figure(ratio), f"{goals[key]:.2f}" if key in goals else ""


def workload(result):
    """What must be equal for a later result to replace an earlier one: the options that change the work."""
    options = re.findall(r"--(?:micro-batches|precision|gpus|tp|pp)\b(?: [^\s-]\S*)?", result["command"])
    return result["shape"], result["device"].replace(" 80 GB", ""), " ".join(options)


def rows(results):
    """One row per comparison, the latest of each workload; values without a peer stay in the files."""
    latest = {}
    for result in results:
        for ours, peer, ratio, goal in comparisons(result):
            cells = (result["shape"], labelled(result, ours) + f" {result['unit']}", labelled(result, peer), ratio, goal,
                     result["device"], result["date"], result["commit"], f"`{result['command']}`")
            latest[(*workload(result), ours, peer)] = cells
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in latest.values()]


def table(results):
    return "\n".join(["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|", *rows(results)])


def with_table(document, results):
    """The document with the text between the two markers replaced."""
    before, rest = document.split(BEGIN)
    return f"{before}{BEGIN}\n{table(results)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), load()))
