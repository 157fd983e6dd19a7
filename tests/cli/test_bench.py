"""teratron bench: the timed step and its report, on the CPU."""
import json

import pytest

from program import message, needs_binary, teratron

pytestmark = needs_binary

TINY = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "2", "--seq-length", "16",
        "--max-position-embeddings", "16", "--micro-batch-size", "2", "--vocab-size", "100"]


def test_prints_and_writes_the_result(tmp_path):
    result = teratron("bench", "--precision", "fp32", "--steps", "5", "--warm-up-seconds", "0.1", "--json",
                      str(tmp_path / "result.json"), *TINY)
    assert "bench gpt2-124m --num-layers 2 --hidden-size 32" in result.stdout  # it is not that shape any more
    assert "tokens/s" in result.stdout and "median of 5" in result.stdout
    measured = json.loads((tmp_path / "result.json").read_text())
    assert measured["steps"] == 5
    assert measured["tokens_per_second"] > 0
    assert abs(measured["tokens_per_second"] * measured["step_ms"] / 1e3 - 2 * 16) < 1e-6
    assert 3.0 < measured["loss"] < 6.0  # of 100 tokens, hardly trained


def test_an_unknown_shape_is_refused_with_the_known_ones():
    result = teratron("bench", "--shape", "gpt5", code=2)
    assert "unknown shape 'gpt5'" in result.stderr and "gpt2-124m" in result.stderr


@pytest.mark.parametrize("command", [[], ["generate"], ["serve"]], ids=str)
def test_a_folder_is_refused_with_the_way_out(command):
    for flag in ("--hf", "--hf-config", "--load", "--pretrained_checkpoint", "--lora"):
        message(teratron("bench", *command, flag, "folder", code=2), flag, "random weights", "--shape")
        message(teratron("bench", *command, f"{flag}=folder", code=2), flag, "random weights", "--shape")


def test_a_run_that_ends_before_the_timed_steps_is_an_error():
    result = teratron("bench", "--precision", "fp32", "--train-iters", "4", "--steps", "50", "--warm-up-seconds", "0", *TINY,
                      code=2)
    assert "--train-iters" in result.stderr


def test_everything_wrong_is_told_at_once():
    result = teratron("bench", "--lr", "much", "--num-attention-heads", "5", code=2)
    assert "--lr" in result.stderr and "num_attention_heads" in result.stderr


def test_ranks_are_timed_together(tmp_path):
    result = teratron("launch", "--nproc-per-node", "2", "--backend", "processes", "--log-dir", str(tmp_path), "--", "bench",
                      "--precision", "fp32", "--steps", "3", "--warm-up-seconds", "0", *TINY)
    assert result.stdout.count("median of 3") == 1
