"""The same command goes on with the run in --save, whatever ended it and wherever it first took its weights from."""

import os
import re
import shlex
import signal
import subprocess

import pytest
from jobs import rank_pids, start_job
from program import BINARY, MOCK, TINY, assert_bitwise, curve, environment, message, needs_binary, start, steps, teratron, train, wait_for, weights

pytestmark = needs_binary


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "run"
    train(*MOCK, "--train-iters", "3", "--save", folder)
    return folder


def finetuning(base, save, iterations=12):
    return [*MOCK, "--train-iters", str(iterations), "--save-interval", "4", "--finetune", "--load", str(base), "--save", str(save)]


def test_a_killed_finetuning_goes_on(base, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(*finetuning(base, whole))
    train(*finetuning(base, broken), fault="ckpt.after_tracker@step=4:kill", code=-signal.SIGKILL)
    again = train(*finetuning(base, broken))
    assert f"loading checkpoint from {broken}/iter_0000004 at iteration 4" in again.stdout
    assert f"{broken} holds a checkpoint, which goes before --load: the weights of {base} are not loaded" in again.stderr
    assert curve(broken) == curve(whole)
    assert_bitwise(weights(broken, 12), weights(whole, 12))
    assert "already finished" in train(*finetuning(base, broken)).stdout
    # Under the launcher, with --fresh of which only the first start is one.
    job = ["launch", "--nproc-per-node", 1, "--backend", "processes", "--max-restarts", 1, "--", "pretrain", "gpt"]
    restarted = teratron(*job, *finetuning(base, broken), "--fresh", fault="ckpt.after_tracker@step=8:kill")
    assert f"notice: restarting all ranks (1 of 1) from {broken}/iter_0000008" in restarted.stderr
    assert [path.name for path in broken.glob("replaced-*")] == ["replaced-1"]
    assert_bitwise(weights(broken, 12), weights(whole, 12))


def test_another_run_is_refused_and_left_alone(base, tmp_path):
    before = sorted((path, path.stat().st_mtime_ns) for path in base.rglob("*"))
    for other, words in [(["--hidden-size", "32"], "hidden_size: 16 in the checkpoint, 32 in this run"), (["--finetune"], "without --finetune"),
                         (["--vocab-size", "61"], "tokenizer_vocab_size")]:
        message(train(*MOCK, "--train-iters", "3", *other, "--save", base, code=2), words, "--save", "--fresh", "iter_0000003")
    bert = teratron("pretrain", "bert", *MOCK, "--save", base, code=2)
    message(bert, "family gpt, and this run trains bert")
    assert sorted((path, path.stat().st_mtime_ns) for path in base.rglob("*")) == before


def test_another_tokenizer_is_another_run(tmp_path):
    """Of the same size. A copy in another place is not."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "copy.txt").write_text("\n".join(words))
    (tmp_path / "other.txt").write_text("\n".join([*words[:-2], "dog", "cat"]))

    def pretrain(vocabulary, **expected):
        return teratron("pretrain", "bert", *TINY, "--mock-data", "--train-iters", "2", "--tokenizer-type", "BertWordPieceLowerCase",
                        "--vocab-file", tmp_path / vocabulary, "--save", tmp_path / "run", **expected)
    pretrain("vocab.txt")
    message(pretrain("other.txt", code=2), "another tokenizer", "--save", "--fresh")
    assert "already finished" in pretrain("copy.txt").stdout


def run_in_shell(command):
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, env=environment())


def command_to_go_on(errors, folder):
    found = re.findall(rf"notice: the last checkpoint is {folder}/iter_(\d+)\. To go on from it: (.*)", errors)
    assert len(found) == 1, errors
    assert "--fresh" not in found[0][1]
    return int(found[0][0]), found[0][1]


def test_a_stopped_run_names_its_checkpoint_and_the_command(tmp_path):
    run = tmp_path / "a run's folder"
    process = start([*MOCK, "--train-iters", "400", "--save", str(run), "--fresh"])
    wait_for(lambda: len(steps(run)) >= 5, "five steps")
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=10)[0]
    iteration, command = command_to_go_on(output, run)
    assert process.returncode == 75 and iteration == steps(run)[-1]
    assert shlex.split(command)[1:] == ["pretrain", "gpt", *MOCK, "--train-iters", "400", "--save", str(run)]
    assert f"at iteration {iteration}\n" in run_in_shell(command).stdout


@pytest.mark.parametrize("saves", [True, False])
def test_a_killed_job_names_its_checkpoint_and_the_command(tmp_path, saves):
    job = [*MOCK, "--train-iters", "100000", "--save-interval", "2" if saves else "100000", "--save", str(tmp_path), "--global-batch-size", "4"]
    process = start_job(*job, "--tp", "2", flags=["--nproc-per-node", 2, "--backend", "processes"])
    wait_for(lambda: len(steps(tmp_path)) >= 5, "five steps")
    os.kill(rank_pids(process)[1], signal.SIGKILL)
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == 5
    if saves:
        iteration, command = command_to_go_on(errors, tmp_path)
        assert (tmp_path / f"iter_{iteration:07d}").exists()
        assert shlex.split(command) == [BINARY, "launch", "--nproc-per-node", "2", "--backend", "processes", "--", "pretrain", "gpt", *job, "--tp", "2"]
    else:
        assert "notice: no checkpoint was saved. To start again: " in errors
