"""Programs that people use with such servers. ./run test --long runs them in .venv-clients; elsewhere they are skipped."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
from server import run, server  # noqa: E402, F401
