"""What the program says of itself, and settings that it writes and reads."""

import os
import re
import subprocess

import pytest

from program import BINARY, MOCK, message, needs_binary, teratron, train

pytestmark = needs_binary


def test_version():
    assert re.fullmatch(r"teratron \d+\.\d+\.\d+\n", teratron("--version").stdout)


def test_help_is_grouped():
    text = teratron("pretrain", "gpt", "--help-all").stdout
    groups = [line for line in text.splitlines() if line and not line.startswith((" ", "usage"))]
    assert {"Model", "Parallelism", "Training", "Learning rate", "Precision", "Checkpoints", "Data", "Logging"} <= set(groups)
    assert "--train-iters N" in text and "[1234]" in text


def test_help_of_a_command_is_its_own():
    for words, says, hides in [
            ("finetune gpt", "usage: teratron finetune gpt [FLAGS]\n", "--num-classes"),
            ("finetune bert --task classification", "usage: teratron finetune bert [FLAGS]\n", "--eod-mask-loss"),
            ("finetune gpt --task regression", "--train-data", "teratron pretrain"),
            ("finetune bert", "       teratron finetune gpt FLAGS...\n", "pretrain bert"),
            ("tasks", "{WIKITEXT103|LAMBADA|RACE|MNLI|QQP}", "classification"),
            ("env", "usage: teratron env\n", "env \n"),
            ("tokenizer train", "Vocabulary size, with special tokens (required)", "[32768]"),
            ("ckpt inspect", "Step to load; default the latest", "Iteration"), ("", "usage: teratron COMMAND", "\x00")]:
        text = teratron(*words.split(), "--help").stdout
        assert says in text and hides not in text, text
        assert max(map(len, text.splitlines())) <= 100, text
    text = teratron("finetune", "bert", "--task", "classification", "--help").stdout
    assert {"--num-classes", "--train-data", "--valid-data"} <= set(re.findall(r"--[a-z-]+", text))


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


SEED_ANSWERS = "0\n2\n\n\n\nyes\n2\n\n2\n2\n\n\n\n4\nbf16\n"  # of Accelerate's Megatron-LM page


def wizard(folder, answers, *flags, code=0):
    result = subprocess.run([BINARY, "config", "--config_file", "run.yaml", *flags], input=answers, text=True,
                            capture_output=True, cwd=folder, timeout=60)
    assert result.returncode == code, result.stderr
    return result


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_the_wizard_ends_in_a_command_that_trains_on_all_ranks(family, tmp_path):
    said = wizard(tmp_path, SEED_ANSWERS, "--family", family).stdout
    command = said.splitlines()[-1].split()
    assert command[:3] == ["teratron", "launch", "--config-file"] and family in command
    done = subprocess.run([BINARY, *command[1:]], capture_output=True, text=True, cwd=tmp_path, timeout=120,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    assert re.search(r"iteration +10/ +10 ", done.stdout)
    assert re.search(r"tensor_model_parallel_size \.+ 2", done.stdout)


def test_the_wizard_writes_nothing_without_all_answers(tmp_path):
    for answers in ("", SEED_ANSWERS[:-5]):
        assert "answers end here" in wizard(tmp_path, answers, code=2).stderr
    assert "DeepSpeed" in wizard(tmp_path, "0\n2\n\nyes\n", code=2).stderr
    assert not list(tmp_path.iterdir())


def test_older_configurations_are_updated(tmp_path):
    (tmp_path / "run.yaml").write_text("num_machines: 1\nmixed_precision: bf16  # as before\n")
    said = teratron("config", "update", "--config-file", tmp_path / "run.yaml").stdout
    assert "use_cpu" in said and "rdzv_backend" in said
    assert (tmp_path / "run.yaml").read_text().startswith("num_machines: 1\nmixed_precision: bf16  # as before\n")
    assert "has all keys" in teratron("config", "update", "--config-file", tmp_path / "run.yaml").stdout
    message(teratron("config", "updat", code=2), "updat", "update")


def test_config_writes_model_data_and_comments_when_asked(tmp_path):
    def written(name, *flags):
        teratron("config", "default", "--config-file", tmp_path / name, *flags)
        return (tmp_path / name).read_text()
    plain = written("plain.yaml")
    assert "#" not in plain and "data_path" not in plain and "model" not in plain.replace("main_training_function: main", "").replace("megatron_lm", "")
    commented = written("comments.yaml", "--comments")
    lines = [line for line in commented.splitlines() if line.strip()]
    assert lines and all("  # " in line for line in lines), commented
    assert "".join(re.sub(r"  # .*", "", line) + "\n" for line in lines) == written("same.yaml")
    whole = written("whole.yaml", "--model-preset", "gpt2", "--num-gpus", "2", "--gpu-memory", "80", "--data-path", "my text", "b", "--comments")
    assert 'model_preset: "gpt2"  # ' in whole and 'data_path: ["my text","b"]  # ' in whole
    shown = teratron("plan", "gpt", "--config-file", tmp_path / "whole.yaml", "--seq-length", "64", "--micro-batch-size", "1", "--num-micro-batches", "1").stdout
    assert "num_layers = 12" in shown and "data_path = ['my text', 'b']" in shown


def test_the_wizard_proposes_a_layout_that_fits(tmp_path):
    said = wizard(tmp_path, "\n2\n\n\n\nyes\n\n\n\n\n\n\n\n\n", "--model-preset", "llama3-8b", "--num-gpus", "8",
                  "--gpu-memory", "H100").stdout
    assert "tensor parallelism 2" in said and "Parallelism degree/size? [2]" in said
    written = (tmp_path / "run.yaml").read_text()
    assert "tp_degree: 2" in written and "num_processes: 8" in written and "mixed_precision: bf16" in written
    (tmp_path / "run.yaml").unlink()
    assert "neither a size nor a known GPU" in wizard(tmp_path, "", "--model-preset", "gpt2", "--gpu-memory", "big",
                                                      code=2).stderr


def test_environment_names_versions_and_devices():
    lines = dict(line.split(None, 1) for line in teratron("env").stdout.splitlines() if line[:1].strip())
    assert {"teratron", "built", "torch", "MPI", "system", "CPU", "GPUs"} <= lines.keys()
    assert lines["torch"].startswith("2.11")
    if not lines["GPU"].startswith("kernels   none"):
        assert re.match(r"13\.\d+ \(driver: ", lines["CUDA"])
        for library in ("cuDNN", "NCCL"):  # loaded where there is a driver
            assert "driver: none" in lines["CUDA"] or re.match(r"\d+\.\d+\.\d+$", lines[library])
