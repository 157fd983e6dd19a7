"""The experiments of the published pages as they came out here: JSON files beside this one, and the tables of
docs/published-pages.md generated from them.

    python3 bench/published/tables.py        # rewrites the tables

A file has a title, date, commit, device and command, the columns and rows of its table, and a note on how to read it.
"""
import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
DOCUMENT = FOLDER.parents[1] / "docs" / "published-pages.md"
BEGIN, END = "<!-- begin of the experiments -->\n", "<!-- end of the experiments -->\n"


def table(result):
    lines = [result["columns"], ["---"] * len(result["columns"]), *result["rows"]]
    assert all(len(row) == len(result["columns"]) for row in result["rows"]), result["title"]
    rows = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return (f"### {result['title']}\n\n{result['device']}, {result['date']}, commit {result['commit']}. {result['command']}.\n\n{rows}\n\n"
            f"{result['note']}\n")


def with_tables(document):
    before, rest = document.split(BEGIN)
    tables = "\n".join(table(json.loads(path.read_text())) for path in sorted(FOLDER.glob("*.json")))
    return before + BEGIN + "\n" + tables + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
