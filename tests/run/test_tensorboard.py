"""The event files and the JSONL that metrics_test writes, read by TensorBoard itself and by wandb_follow."""
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLLOWER = ROOT / "tools" / "wandb_follow.py"


def find_program(name):
    builds = [Path(os.environ["TERATRON_BUILD"])] if "TERATRON_BUILD" in os.environ else ROOT.glob("build/*")
    found = [p for build in builds for p in build.glob(f"teratron/*/{name}") if os.access(p, os.X_OK)]
    if not found:
        pytest.skip(f"{name} is not built; run ./run build, or set TERATRON_BUILD")
    return max(found, key=lambda p: p.stat().st_mtime)


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    subprocess.run(
        [find_program("telemetry_test"),
         "--gtest_filter=MetricsLoggerTest.TensorBoardFileIsFramed:MetricsLoggerTest.JsonlHasEveryEvent"],
        env={**os.environ, "TERATRON_TEST_OUTPUT": str(folder)}, check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def events(output):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = accumulators.EventAccumulator(str(output / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars(events, tag):
    return [(e.step, e.value) for e in events.Scalars(tag)]


def test_scalars_and_steps(events):
    assert scalars(events, "lm loss") == [(1, 4.0), (2, 2.0), (3, math.inf), (4, 1.0)]
    assert scalars(events, "lm loss vs samples") == [(8, 4.0), (16, 2.0), (24, math.inf), (32, 1.0)]
    assert [s for s, _ in scalars(events, "learning-rate")] == [1, 2, 3, 4]
    assert scalars(events, "lm loss validation") == [(4, 1.5)]
    assert scalars(events, "lm loss validation ppl")[0][1] == pytest.approx(math.exp(1.5))
    assert events.Scalars("lm loss")[0].wall_time == pytest.approx(1769860800.25)


def test_tags_of_megatron(events):
    expected = {"learning-rate", "batch-size", "loss-scale", "grad-norm", "num-zeros", "params-norm", "lm loss"}
    expected |= {f"{tag} vs samples" for tag in expected}
    expected |= {"iteration-time", "throughput", "mem-reserved-bytes", "mem-allocated-bytes", "mem-max-allocated-bytes"}
    assert expected <= set(events.Tags()["scalars"])


def test_text(events):
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert "GPT, 10.6M parameters" in texts["run/text_summary"]
    assert "| wandb_exp_name | run one |" in texts["arguments/text_summary"]
    assert set(texts) == {f"{tag}/text_summary" for tag in ("run", "arguments", "samples")}
    assert texts["samples/text_summary"].startswith("**Once** upon \ufffd a")
    assert set(events.PluginTagToContent("text")) == set(texts)


def test_every_record_passes_the_crc(output):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    files = list((output / "tensorboard").glob("events.out.tfevents.*"))
    assert len(files) == 1
    loaded = list(loader.LegacyEventFileLoader(str(files[0])).Load())
    assert loaded[0].file_version == "brain.Event:2"
    assert len(loaded) == 16


def follow(output, folder, *arguments, modules=""):
    """Runs the follower with stand-ins for wandb and mlflow on the path."""
    for name, source in json.loads(modules or "{}").items():
        (folder / f"{name}.py").write_text(source)
    return subprocess.run(
        [sys.executable, str(FOLLOWER), str(output / "metrics.jsonl"), "--once", *arguments], text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": str(folder)})


def test_follower_feeds_wandb(output, tmp_path):
    wandb = """
import json
def init(**kwargs): print("init", json.dumps(kwargs)); return Run()
class Run:
    def define_metric(self, *args, **kwargs): pass
    def log(self, values, step=None): print("log", json.dumps([values, step]))
    def finish(self): print("finish")
"""
    done = follow(output, tmp_path, "--to", "wandb", "--project", "p", modules=json.dumps({"wandb": wandb}))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("init") and "GPT, 10.6M parameters" in lines[0] and lines[-1] == "finish"
    assert json.loads(lines[0][5:])["name"] == "run one", "as --wandb-exp-name said"
    logged = [json.loads(line[4:]) for line in lines if line.startswith("log")]
    assert [values["lm loss"] for values, step in logged if "lm loss" in values] == [4.0, 2.0, 1.0], \
        "a skipped step has no finite loss"
    assert {"lm loss validation": 1.5, "lm loss validation ppl": pytest.approx(math.exp(1.5))} in [v for v, _ in logged]
    steps = [step for _, step in logged]
    assert steps == sorted(steps)


def test_follower_feeds_mlflow(output, tmp_path):
    mlflow = """
import contextlib, json
def set_experiment(name): print("experiment", name)
@contextlib.contextmanager
def start_run(run_name=None): yield print("run", run_name)
def log_params(values): print("params", json.dumps(values))
def log_metrics(values, step=None): print("metrics", json.dumps([values, step]))
"""
    done = follow(output, tmp_path, "--to", "mlflow", "--project", "p", modules=json.dumps({"mlflow": mlflow}))
    assert done.returncode == 0, done.stderr
    assert "experiment p" in done.stdout and "run a1b2" in done.stdout
    metrics = [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("metrics")]
    assert metrics[0] == [{"lm_loss": 4.0, "learning-rate": 1e-3, "batch-size": 8, "loss-scale": 65536.0,
                           "grad-norm": 1.0, "num-zeros": 3, "params-norm": 10.0}, 1]


def test_follower_says_which_package_is_missing(output, tmp_path):
    hidden = json.dumps({"wandb": "raise ModuleNotFoundError(\"No module named 'wandb'\", name='wandb')"})
    done = follow(output, tmp_path, "--to", "wandb", modules=hidden)
    assert done.returncode == 2
    assert "pip install wandb" in done.stderr and "Traceback" not in done.stderr


def test_follower_needs_a_file(tmp_path):
    done = subprocess.run([sys.executable, str(FOLLOWER), str(tmp_path / "no.jsonl"), "--once"], text=True,
                          capture_output=True)
    assert done.returncode == 2 and "no.jsonl" in done.stderr and "Traceback" not in done.stderr


def test_follower_prints_without_a_service(output, tmp_path):
    done = follow(output, tmp_path, "--to", "print")
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[1])["metrics"]["lm loss"] == 4.0
