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
COLUMNS = ("shape", "date", "commit", "device", "command", "unit", "ours", "peer", "ratio", "goal")
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
    """Writes a new file, never over an older one."""
    check(result)
    folder.mkdir(parents=True, exist_ok=True)
    name, number = re.sub(r"[^\w.]+", "-", f"{result['date']}-{result['shape']}"), 1
    while (path := folder / f"{name}-{number}.json").exists():
        number += 1
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def load(folder=RESULTS):
    """All results, those of one shape and device next to each other, the oldest first."""
    results = []
    for path in sorted(folder.glob("*.json")):
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
    value = figure({**result["ours"], **result["peers"]}[name])
    return value if name == "teratron" and name in result["ours"] else f"{value} {name}"


def comparisons(result):
    """(ours, peer, ratio, goal) of each ratio, then of each value that has a goal or was not compared."""
    goals, values, previous, compared = result["goals"], {**result["ours"], **result["peers"]}, None, set()
    for key, ratio in result["ratios"].items():
        a, b = key.split(" / ")
        compared |= {a, b}
        yield ("" if a == previous else labelled(result, a), f"{figure(values[b])} {b}",
               f"{ratio:.3f}" if ratio < 10 else figure(ratio), f"{goals[key]:.2f}" if key in goals else "")
        previous = a
    for name in result["ours"]:
        if name in goals or name not in compared:
            goal = f"{figure(goals[name])} {result['unit']}" if name in goals else ""
            yield labelled(result, name), "", "", goal


def row(result):
    command = f"`{result['command']}`" + (f"<br>{result['note']}" if result["note"] else "")
    cells = (result["shape"], result["date"], result["commit"], result["device"], command, result["unit"],
             *("<br>".join(lines) for lines in zip(*comparisons(result))))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def latest(results):
    """The last run of each command on each device."""
    return list({(result["device"], result["command"], result["shape"]): result for result in results}.values())


def table(results):
    return "\n".join(["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|", *map(row, results)])


def with_table(document, results):
    """The document with the text between the two markers replaced."""
    before, rest = document.split(BEGIN)
    return f"{before}{BEGIN}\n{table(latest(results))}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), load()))
