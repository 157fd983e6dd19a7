"""A checkpoint that the release before divided manifests (format 2.0) wrote on 4 ranks: tensor-parallel size 2, distributed optimizer."""

import json
import shutil
from pathlib import Path

import pytest
from jobs import launch
from program import TINY, losses, message, needs_binary, teratron, train

pytestmark = needs_binary

SAVED = Path(__file__).parents[1] / "fixtures" / "checkpoint" / "iter_0000003"
JOB = [*TINY, "--tokenizer-type", "NullTokenizer", "--vocab-size", "20", "--mock-data", "--num-layers", "1", "--hidden-size", "8",
       "--seq-length", "8", "--max-position-embeddings", "8", "--micro-batch-size", "1", "--global-batch-size", "4",
       "--log-interval", "1", "--train-iters", "6", "--use-distributed-optimizer"]
CONTINUED = [3.042610, 3.037522, 3.046435]  # what that release printed of iterations 4 to 6


@pytest.fixture(name="run")
def copy(tmp_path):
    shutil.copytree(SAVED, tmp_path / "run" / SAVED.name)
    return tmp_path / "run"


def test_training_continues_with_any_layout(run):
    assert losses(train(*JOB, "--load", run).stdout) == pytest.approx(CONTINUED, abs=2e-6)
    split = launch(4, *JOB, "--load", run, "--tensor-model-parallel-size", "2")
    assert losses(split.stdout) == pytest.approx(CONTINUED, abs=2e-6)


def test_tools_read_it(run):
    assert "all hashes match" in teratron("ckpt", "verify", run).stdout
    assert "written by    4 ranks" in teratron("ckpt", "inspect", run).stdout


def test_a_small_checkpoint_is_still_one_that_earlier_releases_read(run):
    launch(4, *JOB, "--load", run, "--save", run, "--tensor-model-parallel-size", "2")
    saved = json.loads((run / "iter_0000006" / "manifest.json").read_text())
    before = json.loads((SAVED / "manifest.json").read_text())
    assert saved["format_version"] == before["format_version"] == "1.0"
    assert saved.keys() == before.keys()
    assert saved["tensors"].keys() == before["tensors"].keys()
    for name, tensor in saved["tensors"].items():
        old = before["tensors"][name]
        assert (tensor["dtype"], tensor["shape"]) == (old["dtype"], old["shape"])
        assert [part.keys() for part in tensor["parts"]] == [part.keys() for part in old["parts"]]


def test_a_newer_format_is_named(run):
    path = run / SAVED.name / "manifest.json"
    path.write_text(path.read_text().replace('"format_version":"1.0"', '"format_version":"3.0"'))
    message(train(*JOB, "--load", run, code=4), "has format 3.0", "Use Teratron")
    assert path.exists(), "a newer format is not damage"
