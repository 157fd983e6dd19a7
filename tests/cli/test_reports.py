"""What a run reports of evaluations, profiles and checkpoints."""

import json
import re

from program import MOCK, needs_binary, teratron, train

pytestmark = needs_binary


def events(folder, kind):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [event for event in lines if event["type"] == kind]


def test_a_second_evaluation_of_an_iteration_says_so(tmp_path):
    flags = [*MOCK, "--eval-iters", "1", "--run-dir", tmp_path, "--log-interval", "4"]
    says = "(the second evaluation of iteration 4, on the samples that follow those of the first)"
    assert train(*flags, "--train-iters", "4", "--eval-interval", "2").stdout.count(says) == 1
    found = [(event["iteration"], event["split"], event.get("repeated", False)) for event in events(tmp_path, "evaluation")]
    assert found == [(2, "validation", False), (4, "validation", False), (4, "validation", True), (4, "test", False)]
    once = train(*flags, "--train-iters", "5", "--eval-interval", "2").stdout
    assert "second evaluation" not in once and once.count("validation loss") == 4


def test_a_profile_on_a_cpu_reports_no_gpu(tmp_path):
    result = train(*MOCK, "--train-iters", "6", "--profile", "--profile-step-start", "2", "--profile-step-end", "4",
                   "--run-dir", tmp_path)
    assert "error" not in result.stderr.lower(), result.stderr
    assert json.loads((tmp_path / "trace-rank-0.json").read_text())["traceEvents"]


def test_the_last_checkpoints_are_kept(tmp_path):
    train(*MOCK, "--train-iters", "10", "--save", tmp_path, "--save-interval", "1", "--keep-last", "2",
          "--save-retain-interval", "4")
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == [f"iter_{n:07d}" for n in (4, 8, 9, 10)]


def test_help_spells_flags_with_hyphens(tmp_path):
    for command in (["pretrain", "gpt"], ["launch"], ["plan"], ["config"], ["generate"], ["preprocess"], ["ckpt", "convert"]):
        flags = re.findall(r"--[a-z][\w-]*", teratron(*command, "--help-all" if command[0] == "pretrain" else "--help").stdout)
        assert flags and not [flag for flag in flags if "_" in flag], command
    teratron("launch", "--nproc_per_node", "1", "--log_dir", tmp_path, "--", "env")
    assert (tmp_path / "rank-0.log").exists(), "underscores are accepted"
