"""Programs that people use with such servers. ./run test --long runs them in .venv-clients; elsewhere they are skipped."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
from server import make_model, serving  # noqa: E402


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(run):
    with serving(run) as started:
        yield started
