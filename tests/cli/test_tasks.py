"""`teratron eval` and `teratron tasks`: messages, refused input, settings from the checkpoint, scripts of Megatron-LM, a learned rule."""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from program import BINARY, MOCK, TINY, VOCABULARY, environment, message, needs_binary, teratron, train

pytestmark = needs_binary
ROOT = Path(__file__).resolve().parents[2]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
COUNT = 18
NUMBERS = [f"p{i}" for i in range(COUNT)] + [f"h{i}" for i in range(COUNT)]
FILLERS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat"]
SMALL = ["--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--device", "cpu", "--fp16=false", "--num-threads", 1]
CLASSES = ["contradiction", "entailment", "neutral"]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    train(*MOCK, "--train-iters", "1", "--save", folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT with random weights over few words."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(SPECIAL + NUMBERS + FILLERS) + "\n")
    teratron("pretrain", "bert", "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 24,
             "--max-position-embeddings", 32, "--micro-batch-size", 2, "--lr", "1e-4", "--train-iters", 1, "--mock-data", "--eval-iters", 0,
             "--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", folder / "vocab.txt", "--save", folder / "run", "--device", "cpu",
             "--init-method-std", 0.2)  # smaller weights learn the sums below after a plateau that outlasts 20 epochs for some seeds
    return folder / "run"


def write_mnli(path, rows):
    """rows: (premise, hypothesis, class)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(f"c{i}" for i in range(12))]
    lines += ["\t".join([str(i), *"abcdefg", a, b, "x", CLASSES[label]]) for i, (a, b, label) in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def small_mnli(folder):
    chosen = random.Random(1)
    rows = [(" ".join(chosen.choices(FILLERS, k=4)), " ".join(chosen.choices(FILLERS, k=3)), chosen.randrange(3)) for _ in range(12)]
    write_mnli(folder / "MNLI" / "train.tsv", rows)
    return ["--train-data", folder / "MNLI/train.tsv", "--valid-data", write_mnli(folder / "MNLI" / "dev_matched.tsv", rows[:7])]


def finetune(bert, *flags, **expected):
    return teratron("tasks", "--task", "MNLI", "--pretrained-checkpoint", bert, "--micro-batch-size", 2, "--lr", "1e-3", "--eval-iters", 0,
                    "--device", "cpu", "--num-threads", 1, *flags, **expected)


@pytest.mark.parametrize("lines, code, words", [
    ('{"messages": [{"role": "user", "content": "1"}]}', 3, "data.jsonl:1: the line has neither continuation, choices nor prompt"),
    ('{"context": "1", "choices": ["2", "3"], "answer": 2}', 3, "data.jsonl:1: answer 2 is not one of the 2 choices"),
    ('{"context": "1", "continuation": " 2"}\n{"context": "1"}', 3, "data.jsonl:2: the line has neither"),
    ('{"context": "1", "continuation": "99"}', 3, "data.jsonl:1"),
    ("", 3, "the file has no samples")])
def test_eval_names_the_line(gpt, tmp_path, lines, code, words):
    (tmp_path / "data.jsonl").write_text(lines + "\n")
    refused = teratron("eval", "--load", gpt, "--data", tmp_path / "data.jsonl", "--json", tmp_path / "out.json", "--predictions",
                       tmp_path / "samples.jsonl", "--device", "cpu", code=code)
    assert words in message(refused)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl"]


def test_eval_names_the_flag(gpt, bert, tmp_path):
    (tmp_path / "data.jsonl").write_text('{"context": "1", "continuation": " 2", "source": "x"}\n')
    assert "--data" in message(teratron("eval", "--load", gpt, code=2))
    assert "there is no folder" in message(teratron("eval", "--load", gpt, "--data", tmp_path / "data.jsonl", "--json", tmp_path / "no" / "out", code=2))
    assert "do not generate text" in message(teratron("eval", "--load", bert, "--data", tmp_path / "data.jsonl", code=2))
    refused = teratron("launch", "--nproc-per-node", 3, "--", "eval", "--load", gpt, "--data", tmp_path / "data.jsonl", "--tensor-model-parallel-size", 2, code=2)
    assert "does not divide the 3 ranks" in refused.stderr
    done = teratron("eval", "--load", gpt, "--data", tmp_path / "data.jsonl", "--device", "cpu")
    assert "the field source has no effect" in done.stderr and "samples" in done.stdout


@pytest.mark.parametrize("flags, words", [
    (["--task", "LAMBADA"], "no data are given"), (["--valid-data", "x"], "no task is given"),
    (["--task", "classification", "--valid-data", "x"], "Use one of WIKITEXT103, LAMBADA, RACE, MNLI, QQP"),
    (["--task", "WIKITEXT103", "--valid-data", "text.txt"], "the path contains none of ptb, wiki and lambada")])
def test_tasks_names_the_flag(gpt, tmp_path, flags, words):
    (tmp_path / "text.txt").write_text("1 2 3\n")
    flags = [str(tmp_path / flag) if flag == "text.txt" else flag for flag in flags]
    assert words in message(teratron("tasks", "--load", gpt, *flags, "--device", "cpu", code=2))


def test_what_is_no_checkpoint_of_megatron_is_named(tmp_path):
    folder = tmp_path / "megatron"
    (folder / "iter_0000050" / "mp_rank_00").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("50")
    (folder / "iter_0000050" / "mp_rank_00" / "model_optim_rng.pt").write_bytes(b"PK\3\4")
    data = small_mnli(tmp_path)
    for flag in ("--load", "--pretrained-checkpoint"):
        refused = teratron("tasks", "--task", "MNLI", flag, folder, *data, "--device", "cpu", code=4)
        message(refused, "not a file of torch.save", "mp_rank_00/model_optim_rng.pt")
    message(teratron("eval", "--load", folder, "--data", "x", "--device", "cpu", code=4), "not a file of torch.save")


def test_settings_come_from_the_checkpoint_and_epochs_are_saved(bert, tmp_path):
    data = small_mnli(tmp_path)
    run = tmp_path / "run"
    done = finetune(bert, *data, "--epochs", 2, "--save", run, "--json", tmp_path / "out.json", "--predictions", tmp_path / "p.jsonl")
    lines = done.stdout.splitlines()
    for line in (" > building MNLI dataset for training:", f"  > paths: {data[1]}", f" > Processing {data[1]} ...",
                 "    reading c0 , c8, c9, and c11 columns ...", " >> processed 12 samples.", "  >> total number of samples: 12",
                 "building train and validation dataloaders ...", "building classification model for MNLI ...",
                 "***WARNING*** could not find classification_head in the checkpoint, initializing to random", "done with setups ...",
                 "working on epoch 1 ...", "working on epoch 2 ...", "calculating metrics ...", "done :-)"):
        assert line in lines, line
    assert "taken from" in done.stderr and "hidden_size=32" in done.stderr
    assert sorted(path.name for path in run.glob("iter_*")) == ["iter_0000006", "iter_0000012"]
    epochs = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["epochs"] == epochs and [epoch["iteration"] for epoch in epochs] == [6, 12]
    evaluated = teratron("tasks", "--task", "MNLI", "--load", run, "--epochs", 0, *data[2:], "--json", tmp_path / "again.json",
                         "--predictions", tmp_path / "again.jsonl", "--micro-batch-size", 3, "--device", "cpu")
    again = json.loads((tmp_path / "again.json").read_text())
    assert "evaluation only mode, setting epoch to -1" in evaluated.stdout and "|epoch: -1| overall" in evaluated.stdout
    assert again["correct"] == figures["correct"] and again["examples"] == 7
    assert len((tmp_path / "again.jsonl").read_text().splitlines()) == 7
    # The same command goes on where it ended, and one with more epochs trains these.
    assert "training is already finished" in finetune(bert, *data, "--epochs", 2, "--save", run, "--load", run).stdout
    more = finetune(bert, *data, "--epochs", 3, "--save", run, "--load", run, "--override-opt-param-scheduler")
    assert "working on epoch 3 ..." in more.stdout and "working on epoch 2 ..." not in more.stdout
    assert len((run / "epochs.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_epoch_that_was_killed_before_its_score_is_scored(bert, tmp_path, epoch):
    data = small_mnli(tmp_path)

    def command(name):
        return [*data, "--epochs", 2, "--save", tmp_path / name, "--json", tmp_path / f"{name}.json", "--predictions", tmp_path / f"{name}.jsonl"]
    finetune(bert, *command("whole"))
    finetune(bert, *command("broken"), code=-signal.SIGKILL, fault=f"ckpt.after_tracker@step={6 * epoch}:kill")
    again = finetune(bert, *command("broken"))
    assert ("training is already finished" in again.stdout) == (epoch == 2)
    for name in ("epochs.jsonl", "best_checkpointed_iteration.txt"):
        assert (tmp_path / "broken" / name).read_text() == (tmp_path / "whole" / name).read_text()
    for end in (".json", ".jsonl"):
        assert (tmp_path / f"broken{end}").read_text() == (tmp_path / f"whole{end}").read_text()
    (tmp_path / "broken.json").unlink()
    finetune(bert, *command("broken"))
    assert (tmp_path / "broken.json").read_text() == (tmp_path / "whole.json").read_text()


@pytest.mark.parametrize("flags", [["--parallel-residual"], ["--num-layers", "1"]], ids=" ".join)
def test_a_model_that_is_not_the_checkpoints_is_refused(gpt, tmp_path, flags):
    """Nothing is written, and the flag is named."""
    (tmp_path / "ids.txt").write_text("1 2 3\n")
    (tmp_path / "lambada.jsonl").write_text('{"text": "1 2 3 4"}\n')
    (tmp_path / "eval.jsonl").write_text('{"context": "1", "continuation": " 2"}\n')
    (tmp_path / "in.jsonl").write_text('{"tokens": [1]}\n')
    before = sorted(path.name for path in tmp_path.iterdir())
    for command in [["logits", "--input", tmp_path / "ids.txt", "--output", tmp_path / "out.safetensors"],
                    ["eval", "--data", tmp_path / "eval.jsonl", "--json", tmp_path / "out.json"],
                    ["generate", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl"],
                    ["serve", "--port", 0],
                    ["tasks", "--task", "LAMBADA", "--valid-data", tmp_path / "lambada.jsonl", "--json", tmp_path / "out.json"]]:
        refused = teratron(*command, "--load", gpt, "--device", "cpu", *flags, code=2)
        message(refused, flags[0], "in the checkpoint", "Leave it out")
        assert sorted(path.name for path in tmp_path.iterdir()) == before, command


def test_a_setting_of_the_model_without_effect_is_said(gpt, tmp_path):
    """As training says it."""
    (tmp_path / "ids.txt").write_text("1 2 3\n")
    said = teratron("logits", "--input", tmp_path / "ids.txt", "--output", tmp_path / "out.safetensors", "--load", gpt, "--device", "cpu",
                    "--rotary-base", "3", "--moe-router-topk", "2").stderr.splitlines()
    assert said == ["notice: --rotary-base has no effect without --position-embedding-type rope|yarn",
                    "notice: --moe-router-topk has no effect without --num-experts"]


@pytest.mark.parametrize("flags", [["--norm-epsilon", "0.1"], ["--swiglu"]], ids=" ".join)
def test_a_task_is_not_learned_on_another_model(bert, tmp_path, flags):
    refused = finetune(bert, *small_mnli(tmp_path), "--epochs", 1, "--save", tmp_path / "run", *flags, code=4)
    message(refused, flags[0].strip("-").replace("-", "_"), "in the checkpoint")
    assert not list((tmp_path / "run").glob("iter_*"))


@pytest.mark.parametrize("family, texts", [("gpt", ["1 2", "3"]), ("bert", ["the cat", "a dog"])])
def test_finetuning_random_weights_is_told(gpt, bert, tmp_path, family, texts):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": text, "label": i}) + "\n" for i, text in enumerate(texts)))
    pretrained = {"gpt": gpt, "bert": bert}[family]
    model = [*TINY, *VOCABULARY] if family == "gpt" else [
        *SMALL, "--seq-length", 24, "--max-position-embeddings", 32, "--micro-batch-size", 2, "--lr", "1e-4", "--eval-iters", 0,
        "--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", bert.parent / "vocab.txt"]
    command = ["finetune", family, "--task", "classification", "--num-classes", 2, "--train-data", tmp_path / "train.jsonl", "--train-iters", 1, *model]
    told = "warning: finetuning starts from random weights: name a model with --pretrained-checkpoint"
    assert teratron(*command).stderr.count(told) == 1
    assert "random weights" not in teratron(*command, "--pretrained-checkpoint", pretrained).stderr


def test_wrong_labels_and_flags_write_nothing(bert, tmp_path):
    data = small_mnli(tmp_path)
    text = Path(data[1]).read_text()
    Path(data[1]).write_text(text.replace("neutral", "perhaps").replace("entailment", "perhaps"))
    refused = finetune(bert, *data, "--epochs", 1, "--save", tmp_path / "run", "--json", tmp_path / "out.json", code=3)
    assert "train.tsv:" in message(refused) and "'perhaps' is not a label of MNLI" in message(refused)
    assert not (tmp_path / "run").exists() and not (tmp_path / "out.json").exists()
    for flags, words in [(["--epochs", 1, "--train-iters", 5], "the length of a finetuning is that of its epochs"),
                         (["--epochs", 1, "--rampup-batch-size", 2, 2, 8], "constant")]:
        assert words in message(finetune(bert, *data, *flags, code=2))
    assert "no data to train on" in message(finetune(bert, *data[2:], "--epochs", 1, code=2))
    Path(data[1]).write_text("\n".join(text.splitlines()[:2]) + "\n")
    assert "1 samples are less than a batch of 2" in message(finetune(bert, *data, "--epochs", 1, code=2))
    assert "iteration        1/       1" in finetune(bert, *data, "--epochs", 1, "--keep-last", "--log-interval", 1).stdout


def example(name, folder, **more):
    return subprocess.run([ROOT / "examples" / name, *map(str, more.pop("flags"))], capture_output=True, text=True, timeout=120, cwd=folder,
                          env={**environment(), "TERATRON": BINARY, "GPUS_PER_NODE": "2", **{key: str(value) for key, value in more.items()}})


def test_scripts_of_finetuning(bert, tmp_path):
    small_mnli(tmp_path)
    (tmp_path / "MNLI/dev_mismatched.tsv").write_text((tmp_path / "MNLI/dev_matched.tsv").read_text())
    document = {"article": "the cat sat on a mat", "questions": ["the _ sat", "a dog"], "options": [["cat", "dog", "mat", "a"]] * 2, "answers": ["A", "C"]}
    for part in ("train/middle", "dev/middle", "dev/high"):
        (tmp_path / "RACE" / part).mkdir(parents=True)
        (tmp_path / "RACE" / part / "1.txt").write_text((json.dumps(document) + "\n") * 4)
    flags = [*SMALL, "--seq-length", 24, "--max-position-embeddings", 32, "--epochs", 1, "--eval-iters", 1]
    for name, data in (("finetune_race_distributed.sh", "RACE"), ("finetune_mnli_distributed.sh", "MNLI")):
        done = example(name, tmp_path, flags=[*flags, "--micro-batch-size", 2], DATA=tmp_path / data, PRETRAINED_CHECKPOINT=bert,
                       VOCAB_FILE=bert.parent / "vocab.txt", CHECKPOINT_PATH=tmp_path / f"out-{data}")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert "|epoch: 0| overall: correct / total = " in done.stdout and "done :-)" in done.stdout
        assert (tmp_path / f"out-{data}" / "best_checkpointed_iteration.txt").exists()


def test_the_script_of_zero_shot_tasks(tmp_path):
    data = Path(os.environ.get("TERATRON_TEST_DATA", ""))
    if not (data / "lambada_test.jsonl").exists():
        pytest.skip("TERATRON_TEST_DATA names no folder with lambada_test.jsonl and GPT-2's vocabulary")
    tokenizer = {"VOCAB_FILE": data / "gpt2-vocab.json", "MERGE_FILE": data / "gpt2-merges.txt"}
    train("--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 64, "--max-position-embeddings", 1024, "--mock-data",
          "--vocab-file", tokenizer["VOCAB_FILE"], "--merge-file", tokenizer["MERGE_FILE"], "--micro-batch-size", 1, "--lr", "1e-4", "--train-iters", 1,
          "--eval-iters", 0, "--save", tmp_path / "run", "--device", "cpu")
    (tmp_path / "lambada.jsonl").write_text("".join((data / "lambada_test.jsonl").read_text().splitlines(keepends=True)[:20]))
    done = example("evaluate_zeroshot_gpt.sh", tmp_path, flags=[*SMALL, "--json", tmp_path / "out.json"], VALID_DATA=tmp_path / "lambada.jsonl", CHECKPOINT=tmp_path / "run", **tokenizer)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads((tmp_path / "out.json").read_text())["examples"] == 20 and "> working on iteration: 0" in done.stdout


def sum_rule(folder):
    """The class is the sum of the numbers of premise and hypothesis, modulo 3; training and validation have different pairs."""
    chosen = random.Random(5)
    pairs = [(i, j) for i in range(COUNT) for j in range(COUNT)]
    chosen.shuffle(pairs)

    def rows(part, copies):
        def text(word):
            words = chosen.choices(FILLERS, k=3)
            words.insert(chosen.randrange(4), word)
            return " ".join(words)
        made = [(text(f"p{i}"), text(f"h{j}"), (i + j) % 3) for i, j in part for _ in range(copies)]
        chosen.shuffle(made)
        return made
    return rows(pairs[54:], 10), rows(pairs[:54], 6)


def bag_of_words(train, valid):
    """The accuracy of logistic regression on the words of both texts."""
    torch = pytest.importorskip("torch")
    vocabulary = {word: i for i, word in enumerate(NUMBERS + FILLERS)}

    def features(rows):
        x = torch.zeros(len(rows), len(vocabulary))
        for i, (a, b, _) in enumerate(rows):
            for word in (a + " " + b).split():
                x[i, vocabulary[word]] += 1
        return x, torch.tensor([label for _, _, label in rows])
    model = torch.nn.Linear(len(vocabulary), 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x, y = features(train)
    for _ in range(400):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    x, y = features(valid)
    return (model(x).argmax(1) == y).float().mean().item()


@pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="trains for a minute (--long)")
@pytest.mark.parametrize("precision", [[], ["--bf16"]], ids=["fp32", "bf16"])
def test_a_rule_that_no_bag_of_words_learns(bert, tmp_path, precision):
    train_rows, valid_rows = sum_rule(tmp_path)
    assert bag_of_words(train_rows, valid_rows) < 0.6
    data = ["--train-data", write_mnli(tmp_path / "MNLI" / "train.tsv", train_rows), "--valid-data", write_mnli(tmp_path / "MNLI" / "dev_matched.tsv", valid_rows)]
    result = subprocess.run([BINARY, "tasks", "--task", "MNLI", "--pretrained-checkpoint", bert, "--micro-batch-size", "32", "--lr", "2e-3",
                             "--lr-warmup-fraction", "0.06", "--epochs", "24", "--eval-iters", "0", "--device", "cpu", "--num-threads", "2",
                             "--attention-dropout", "0", "--hidden-dropout", "0", "--weight-decay", "0.1", "--json", tmp_path / "out.json",
                             *precision, *map(str, data)], capture_output=True, text=True, timeout=600, env=environment())
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads((tmp_path / "out.json").read_text())["accuracy"] > 0.95
