"""Every flag of docs/flags.md on the program's command line: it shows in the plan, or is refused with what to do."""

import os
import pathlib
import re
import subprocess

import pytest
from program import BINARY, MOCK, each, environment, message, needs_binary

pytestmark = needs_binary

ROW = re.compile(r"\| `(--[A-Za-z0-9-]+)`(?: `--[A-Za-z0-9-]+`)*(?: ([^|`]*[^|` ]))? \| `[^|]*` \| [^|]* \| ")
VALUES = {"N": ["2"], "X": ["0.5"], "TEXT": ["x"], "N...": ["2"], "X...": ["0.5"], "TEXT...": ["x"], None: []}
OF_OTHERS = {"--config-file"}  # reads a file


def flags():
    """(flag, values) of every row, each choice of a flag that has some."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "flags.md").read_text().split("## Other flags")[0]
    rows = [line.replace("\\|", "\1") for line in text.splitlines() if line.startswith("| `--")]
    found = []
    for row in rows:
        match = ROW.match(row)
        assert match, f"an unknown form of row: {row}"
        flag, kind = match.groups()
        if kind and kind.startswith("{"):
            found += [(flag, [choice]) for choice in kind.strip("{}.").split("\1")]
        elif flag not in OF_OTHERS:
            found.append((flag, VALUES[kind]))
    return found


def test_every_flag_is_shown_or_refused(tmp_path):
    shown = []

    def check(case, folder):
        flag, values = case
        result = subprocess.run([BINARY, "plan", "gpt", "--world-size", "8", *MOCK, "--global-batch-size", "16",
                                 "--train-iters", "8", flag, *values], capture_output=True, text=True, timeout=60, cwd=folder, env=environment())
        assert result.returncode in (0, 2, 3), f"{case}: {result.returncode} {result.stderr[-500:]}"
        if result.returncode != 0:
            return message(result)
        assert f"({flag})" in result.stdout, f"{case} is not among the settings: {result.stdout[:2000]}"
        shown.append(case)

    cases = flags()
    assert len(cases) > 250
    cases = cases if os.environ.get("TERATRON_LONG_TESTS") else cases[::8]  # all take two minutes
    each(cases, check, tmp_path)
    assert len(shown) > len(cases) / 2, "most flags have an effect by themselves"


@pytest.mark.parametrize("flag, value", [("--cuda-graph-impl", "full_iteration")])
def test_what_is_not_built_says_so(flag, value):
    result = subprocess.run([BINARY, "plan", "gpt", "--world-size", "8", *MOCK, "--global-batch-size", "16",
                             "--train-iters", "8", flag, value], capture_output=True, text=True, timeout=60, env=environment())
    assert result.returncode == 2
    message(result, "not supported yet")
