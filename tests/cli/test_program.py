"""What the program says of itself, and settings that it writes and reads."""

import re

from program import MOCK, message, needs_binary, teratron, train

pytestmark = needs_binary


def test_version():
    assert re.fullmatch(r"teratron \d+\.\d+\.\d+\n", teratron("--version").stdout)


def test_help_is_grouped():
    text = teratron("pretrain", "gpt", "--help").stdout
    groups = [line for line in text.splitlines() if line and not line.startswith((" ", "usage"))]
    assert {"Model", "Parallelism", "Training", "Learning rate", "Precision", "Checkpoints", "Data", "Logging"} <= set(groups)
    assert "--train-iters N" in text and "[1234]" in text


def test_wrong_values_and_contradictions_are_told_together():
    text = message(train(*MOCK, "--train-iters", "5", "--lr-decay-style", "cosin", "--bf16", "--fp16", "--min-lr", "1",
                         "--bogus", code=2), "cosine", "--fp16 and --bf16", "min_lr = 1", "--bogus")
    assert len(text.splitlines()) == 4, text


def test_written_configuration_is_read(tmp_path):
    file = tmp_path / "run.yaml"
    teratron("config", "--default", "--config-file", file)
    message(teratron("config", "--default", "--config-file", file, code=2), file, "exists")
    file.write_text(file.read_text().replace("recompute_activations: true", "recompute_activations: false"))
    output = train(*MOCK, "--config-file", file, "--train-iters", "2").stdout
    assert re.search(r"  use_distributed_optimizer \.+ True\n", output)


def test_environment_names_versions_and_devices():
    lines = dict(line.split(None, 1) for line in teratron("env").stdout.splitlines() if line[:1].strip())
    assert {"teratron", "built", "torch", "MPI", "system", "CPU", "GPUs"} <= lines.keys()
    assert lines["torch"].startswith("2.11")
    if not lines["GPU"].startswith("kernels   none"):
        assert re.match(r"13\.\d+ \(driver: ", lines["CUDA"]) and re.match(r"\d+\.\d+\.\d+$", lines["cuDNN"])
        assert re.match(r"\d+\.\d+\.\d+$", lines["NCCL"])
