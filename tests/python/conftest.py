"""Tests of the installed wheel: `./run test` runs them with the Python of an environment that has it."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
PROGRAM = Path(sys.executable).with_name("teratron")


@pytest.fixture
def script(tmp_path):
    """Runs a program in Python, after `first` and `from small import *`, with this Python and returns what subprocess.run() does."""
    def run(text, *arguments, launch=(), timeout=300, first="", **environment):
        file = tmp_path / "script.py"
        file.write_text(f"{first}\nfrom small import *\n{text}")
        command = [*launch, sys.executable, str(file), *map(str, arguments)]
        paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=tmp_path,
                              env={**os.environ, "PYTHONPATH": paths, **environment})
    return run


@pytest.fixture
def launch():
    """The beginning of a command that starts so many ranks of a script."""
    return lambda ranks: [str(PROGRAM), "launch", "--nproc-per-node", str(ranks), "--"]
