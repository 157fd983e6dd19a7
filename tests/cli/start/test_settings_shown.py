"""What a run says of its settings at the start, and keeps of them; settings of other programs; one error for one mistake."""

import json
import re
import signal
import subprocess
import time

from program import BINARY, JOB, MOCK, environment, kept, losses, message, needs_binary, teratron, train

pytestmark = needs_binary


def listed(output):
    """Name to value of the listing at the start."""
    block = re.search(r"-+ arguments -+\n(.*?)-+ end of arguments -+\n", output, re.S)[1]
    return dict(re.findall(r"^  (\w+) \.+ (.*)$", block, re.M)), re.search(r"^  \((.*)\)$", block, re.M)[1]


def test_settings_that_differ_from_their_defaults_are_listed(tmp_path):
    shown, more = listed(train(*JOB, "--save", tmp_path / "run", "--tensor-model-parallel-size", "1", "--lr-decay-style", "linear").stdout)
    assert {"num_layers": "2", "hidden_size": "16", "mock_data": "True", "train_iters": "4"}.items() <= shown.items()
    assert not {"tensor_model_parallel_size", "lr_decay_style", "ffn_hidden_size", "bf16"} & shown.keys(), "defaults, and what follows"
    assert 10 <= len(shown) <= 20 and re.match(r"\d{3} more settings have their defaults, \d+ were derived", more)
    run = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert len(run["arguments"]) > 300 and run["arguments"]["lr_decay_style"] == "linear" and run["arguments"]["ffn_hidden_size"] == "64"
    assert '"lr_decay_style"' in (tmp_path / "run" / "report.html").read_text()


def test_the_resolved_configuration_gives_the_run_again(tmp_path):
    first = train(*JOB, "--save", tmp_path / "run", "--clip-grad", "0.5", "--adam-beta2", "0.9", "--seed", "7")
    file = tmp_path / "run" / "config.yaml"
    text = file.read_text()
    assert "clip_grad: 0.5  # --clip-grad" in text and re.search(r"^# ffn_hidden_size: 64$", text, re.M) and "api_key" not in text
    again = train("--config-file", file, "--save", tmp_path / "other")
    assert losses(again.stdout) == losses(first.stdout)
    assert listed(again.stdout)[0].keys() - {"config_file", "save"} == listed(first.stdout)[0].keys() - {"save"}


def test_a_folder_that_is_none_is_one_error(tmp_path):
    for command in (["pretrain", "gpt", "--hf", "nowhere", "--data-path", "x"], ["pretrain", "bert", "--hf-config", tmp_path / "none.json"],
                    ["finetune", "gpt", "--hf", "nowhere", "--data-path", "x", "--micro-batch-size", "1", "--lr", "1", "--train-iters", "1"],
                    ["pretrain", "t5", "--model-preset", "nothing"]):
        problems = [line for line in teratron(*command, code=2).stderr.splitlines() if line.strip()]
        about_model = [line for line in problems if re.search("nowhere|none.json|nothing", line)]
        assert len(about_model) == 1, problems
        assert not [line for line in problems if line not in about_model and re.search("num_layers|hidden_size|num_attention|seq_length|tokenizer|vocab", line)], problems


def test_keys_of_other_programs_are_answered(tmp_path):
    axolotl = {"base_model": "Qwen", "sequence_len": 64, "lora_r": 8, "num_epochs": 2, "learning_rate": 0.1, "val_set_size": 0.1, "sample_packing": "true",
               "load_in_4bit": "true", "gradient_checkpointing": "true", "flash_attention": "true"}
    factory = {"model_name_or_path": "Qwen", "stage": "sft", "finetuning_type": "lora", "cutoff_len": 64, "template": "qwen", "lora_target": "all",
               "per_device_train_batch_size": 1, "num_train_epochs": 1, "output_dir": "out", "plot_loss": "true", "overwrite_cache": "true"}
    for keys in (axolotl, factory):
        (tmp_path / "other.yaml").write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
        said = teratron("pretrain", "gpt", "--config-file", tmp_path / "other.yaml", "--mock-data", code=2).stderr
        for number, key in enumerate(keys, 1):
            if key == "num_train_epochs":
                continue  # ours, too
            line = next(line for line in said.splitlines() if f"other.yaml:{number}:" in line)
            assert re.search(r"Teratron's is --|Leave it out", line), line
    for flag, answer in (("--no-sequence-parallel", "there is none without --sequence-parallel"), ("--dataset=x", "--data-path"), ("--flash-attn", "always fused"),
                         ("--seed-everything=1", "--seed"), ("--model-name-or-path=x", "--hf")):
        message(teratron("pretrain", "gpt", *MOCK, flag, code=2), answer)


def test_a_tokenizer_survives_megatron_and_back(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 20)
    tokenizer = tmp_path / "tokenizer"
    teratron("tokenizer", "train", "--input", tmp_path / "text.txt", "--vocab-size", "290", "--output", tokenizer)
    model = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "2", "--seq-length", "16", "--micro-batch-size", "1", "--train-iters", "1",
             "--mock-data", "--lr", "1e-3", "--eval-iters", "0", "--device", "cpu", "--no-bias-gelu-fusion"]
    for name, flags in (("bpe", ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", tokenizer / "vocab.json", "--merge-file", tokenizer / "merges.txt"]),
                        ("json", ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer / "tokenizer.json"])):
        folder = tmp_path / name
        train(*model, *flags, "--save", folder / "run")
        teratron("ckpt", "convert", "--load", folder / "run", "--to-megatron", folder / "megatron")
        teratron("ckpt", "convert", "--from-megatron", folder / "megatron", "--to-hf", folder / "hf")
        teratron("ckpt", "convert", "--from-megatron", folder / "megatron", "--save", folder / "back")
        assert (folder / "hf" / ("tokenizer.json" if name == "json" else "merges.txt")).exists()
        prompt = ["--prompt", "the cat", "--greedy", "--max-new-tokens", "4", "--device", "cpu"]
        texts = {teratron("generate", *source, *prompt).stdout for source in (("--load", folder / "run"), ("--load", folder / "back"), ("--hf", folder / "hf"))}
        assert len(texts) == 1, texts


def test_a_regression_has_no_perplexity(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog"]))
    (tmp_path / "data.jsonl").write_text('{"text": "cat", "label": 0.25}\n{"text": "dog cat", "label": -3}\n' * 8)
    for task, has in (("regression", False), ("classification", True)):
        if has:
            (tmp_path / "data.jsonl").write_text('{"text": "cat", "label": 0}\n{"text": "dog cat", "label": 1}\n' * 8)
        said = teratron("finetune", "bert", "--task", task, "--train-data", tmp_path / "data.jsonl", "--valid-data", tmp_path / "data.jsonl", "--vocab-file",
                        tmp_path / "vocab.txt", "--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", 8, "--micro-batch-size", 4,
                        "--num-train-epochs", 1, "--lr", "1e-3", "--eval-iters", 1, "--eval-interval", 2, "--log-interval", 2, "--device", "cpu", "--run-dir",
                        tmp_path / task).stdout
        assert ("PPL" in said) == has and ("perplexity" in said) == has and "eval_loss" in said, said
        found = [json.loads(line) for line in (tmp_path / task / "metrics.jsonl").read_text().splitlines()]
        assert all(bool(event["perplexity"]) == has for event in found if event["type"] == "evaluation")


def test_perplexity_of_an_epoch_is_told_once(tmp_path):
    said = train(*MOCK, "--train-iters", "4", "--log-interval", "4", "--eval-iters", "1", "--eval-interval", "2").stdout
    assert len(re.findall(r"PPL", said)) == len(re.findall(r"validation loss at", said)) > 0
    (tmp_path / "chats.jsonl").write_text('{"text": "1 2 3 4 5"}\n' * 8)
    said = teratron("finetune", "gpt", *[flag for flag in MOCK if flag != "--mock-data"], "--train-data-path", tmp_path / "chats.jsonl", "--valid-data-path",
                    tmp_path / "chats.jsonl", "--num-train-epochs", "2", "--eval-iters", "1", "--chat-template", "chatml").stdout
    assert len(re.findall(r"epoch \d: perplexity: \S+ eval_loss", said)) == 2 and "validation loss at epoch" not in said


def test_a_killed_run_has_a_report(tmp_path):
    process = subprocess.Popen([BINARY, "pretrain", "gpt", *map(str, kept(tmp_path / "run", 100000, 5))], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env=environment())
    report, deadline = tmp_path / "run" / "report.html", time.monotonic() + 50
    while not report.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    page = report.read_text()
    metrics = json.loads(re.search(r'id="metrics">(.*?)</script>', page)[1])
    assert metrics["step"] and metrics["save"] and not metrics["end"]
    facts = metrics["run"]["facts"]
    assert facts["name"] == "run" and facts["data"] == "mock data" and "NullTokenizer" in facts["tokenizer"] and facts["host"]
    assert "--save-interval 5" in facts["command"] and int(facts["parameters"]) > 1000
    before = len(metrics["step"])
    report.unlink()
    assert f"wrote {report}" in teratron("report", tmp_path / "run").stdout
    again = json.loads(re.search(r'id="metrics">(.*?)</script>', report.read_text())[1])
    assert len(again["step"]) >= before
    teratron("report", tmp_path / "run" / "metrics.jsonl", "--output", tmp_path / "elsewhere.html")
    assert (tmp_path / "elsewhere.html").read_text() == report.read_text()
    message(teratron("report", tmp_path, code=3), "no metrics.jsonl", "--run-dir")


def test_a_resumed_run_tells_its_layouts(tmp_path):
    train(*kept(tmp_path / "run", 4, 2))
    two = subprocess.run([BINARY, "launch", "--nproc-per-node", "2", "--", "pretrain", "gpt", *map(str, kept(tmp_path / "run", 8, 2)), "--tp", "2",
                          "--override-opt-param-scheduler"], capture_output=True, text=True, env=environment(), timeout=100, cwd=tmp_path, check=False)
    assert two.returncode == 0, two.stderr
    metrics = json.loads(re.search(r'id="metrics">(.*?)</script>', (tmp_path / "run" / "report.html").read_text())[1])
    assert [run["start_iteration"] for run in metrics["runs"]] == [0, 4]
    assert [run["facts"]["layout"] for run in metrics["runs"]] == ["tensor 1 x pipeline 1 x data 1", "tensor 2 x pipeline 1 x data 1"]


def test_inspect_shows_tensors_before_settings(tmp_path):
    train(*kept(tmp_path / "run", 1, 1))
    shown = teratron("ckpt", "inspect", tmp_path / "run").stdout
    assert shown.index("decoder.layers.*.mlp.linear_fc1.weight") < shown.index('"num_layers"')
    row = next(line for line in shown.splitlines() if "layers.*.mlp.linear_fc1.weight" in line)
    assert row.endswith("[64, 16] x 2") and "optimizer." not in shown.split("config  ")[0]
    whole = teratron("ckpt", "inspect", tmp_path / "run", "--tensors").stdout
    assert "decoder.layers.1.mlp.linear_fc1.weight" in whole and "optimizer." in whole.split("config  ")[0]
