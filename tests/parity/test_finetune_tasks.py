"""RACE, MNLI and QQP against PyTorch: samples in the order of its DistributedSampler, losses, gradient norms and predictions."""
import json
import os
import random
from pathlib import Path

import pytest
from test_hf_conversion import run, torch, transformers
from safetensors.torch import load_file

WORDS = [f"w{i}" for i in range(40)] + ["?", "."]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LENGTH, SEED, MICRO = 24, 5, 3
LABELS = {"MNLI": ["contradiction", "entailment", "neutral"], "QQP": ["0", "1"]}
LAYOUTS = {"one": (), "dp2": ("2",), "tp2": ("2", "--tensor-model-parallel-size", "2", "--sequence-parallel"),
           "pp2": ("2", "--pipeline-model-parallel-size", "2"), "all": ("4", "--tensor-model-parallel-size", "2",
                                                                         "--pipeline-model-parallel-size", "2")}


def sentence(chosen, longest=9):
    return " ".join(chosen.choice(WORDS) for _ in range(chosen.randint(1, longest)))


def write_table(path, task, rows):
    """rows: (text, text, label)."""
    if task == "MNLI":
        lines = ["\t".join(f"c{i}" for i in range(12))]
        lines += ["\t".join([str(i), *"abcdefg", a, b, "x", LABELS[task][label]]) for i, (a, b, label) in enumerate(rows)]
    else:
        lines = ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"]
        lines += ["\t".join([str(i), "1", "2", a, b, LABELS[task][label]]) for i, (a, b, label) in enumerate(rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def pair(a, b):
    """[CLS] a [SEP] b [SEP] and its types, cut as Megatron-LM does."""
    ids = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    a, b = ([ids[word] for word in text.split()] for text in (a, b))
    tokens, types = [2, *a, 3, *b], [0] * (len(a) + 2) + [1] * len(b)
    if len(tokens) >= LENGTH:
        tokens, types = tokens[:LENGTH - 1], types[:LENGTH - 1]
    return tokens + [3], types + [1]


def inputs(pairs):
    rows = [pair(a, b) for a, b in pairs]

    def padded(part, value=0):
        return torch.tensor([row[part] + [value] * (LENGTH - len(row[part])) for row in rows])
    mask = torch.tensor([[1] * len(row[0]) + [0] * (LENGTH - len(row[0])) for row in rows])
    return {"input_ids": padded(0), "token_type_ids": padded(1), "attention_mask": mask}


class Pretrained:
    def __init__(self, folder):
        self.folder = folder
        (folder / "vocab.txt").write_text("\n".join(SPECIAL + WORDS) + "\n")
        torch.manual_seed(1)
        # The tokenizer has [BOS] and [EOS] too.
        config = transformers.BertConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                         vocab_size=len(SPECIAL + WORDS) + 2, max_position_embeddings=LENGTH)
        self.model = transformers.BertForPreTraining(config)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        self.model.save_pretrained(folder / "hf")
        run("ckpt", "convert", "--from-hf", folder / "hf", "--save", folder / "ckpt")

    def finetune(self, task, out, data, *flags, layout=()):
        launch = ["launch", "--nproc-per-node", layout[0], "--"] if layout else []
        return run(*launch, "tasks", "--task", task, *data, "--pretrained-checkpoint", self.folder / "ckpt", "--vocab-file",
                   self.folder / "vocab.txt", "--tokenizer-type", "BertWordPieceLowerCase", "--save", out, "--seq-length", LENGTH,
                   "--hidden-dropout", 0, "--attention-dropout", 0, "--optimizer", "sgd", "--sgd-momentum", 0, "--weight-decay", 0,
                   "--clip-grad", 0, "--lr-decay-style", "constant", "--micro-batch-size", MICRO, "--seed", SEED, "--log-interval", 1,
                   "--eval-iters", 0, "--device", "cpu", "--num-threads", 1, *flags, *layout[1:])


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return Pretrained(tmp_path_factory.mktemp("pretrained"))


def mnli(folder, task="MNLI"):
    chosen = random.Random(3)
    classes = len(LABELS[task])

    def rows(count):
        return [(sentence(chosen, 14), sentence(chosen), chosen.randrange(classes)) for _ in range(count)]
    train, valid = rows(23), [rows(10), rows(7)]
    files = [write_table(folder / task / f"{name}.tsv", task, part) for name, part in zip(("train", "dev_matched", "dev_mismatched"), [train, *valid])]
    samples = [([(a, b)], label) for a, b, label in train]
    return ["--train-data", files[0], "--valid-data", *files[1:]], samples, [[([(a, b)], label) for a, b, label in part] for part in valid]


def race(folder):
    chosen = random.Random(6)

    def write(path, documents):
        path.mkdir(parents=True)
        samples, lines = [], []
        for _ in range(documents):
            article, questions, options, answers = sentence(chosen, 9), [], [], []
            for _ in range(chosen.randint(1, 3)):
                question = sentence(chosen, 3) + chosen.choice([" _ ?", " ?"])
                choices = [sentence(chosen, 2) for _ in range(4)]
                label = chosen.randrange(4)
                samples.append(([(question.replace("_", choice) if "_" in question else f"{question} {choice}", article) for choice in choices], label))
                questions.append(question)
                options.append(choices)
                answers.append("ABCD"[label])
            lines.append(json.dumps({"article": article, "questions": questions, "options": options, "answers": answers}))
        (path / "1.txt").write_text("\n".join(lines[:2]) + "\n")
        (path / "2.txt").write_text("\n".join(lines[2:]) + "\n")
        return samples
    train = write(folder / "RACE" / "train" / "middle", 8)
    valid = [write(folder / "RACE" / "dev" / name, 5) for name in ("middle", "high")]
    return (["--train-data", folder / "RACE/train/middle", "--valid-data", folder / "RACE/dev/middle", folder / "RACE/dev/high"], train, valid)


class Torch:
    """The classifier, with the weights that a run of no effect saved."""

    def __init__(self, pretrained, checkpoint, choices):
        (weights,) = Path(checkpoint).glob("*.safetensors")
        weights = load_file(weights)
        head = "multichoice_head" if choices else "classification_head"
        self.choices = choices
        self.bert = transformers.BertForPreTraining.from_pretrained(pretrained.folder / "hf").bert.eval()
        self.head = torch.nn.Linear(32, weights[f"{head}.bias"].numel())
        with torch.no_grad():
            self.head.weight.copy_(weights[f"{head}.weight"])
            self.head.bias.copy_(weights[f"{head}.bias"])
        self.parameters = [*self.bert.parameters(), *self.head.parameters()]

    def logits(self, samples):
        logits = self.head(self.bert(**inputs([pair for pairs, _ in samples for pair in pairs])).pooler_output)
        return logits.view(-1, 4) if self.choices else logits

    def train(self, samples, replicas, epochs, lr):
        """Losses and gradient norms of each step."""
        optimizer = torch.optim.SGD(self.parameters, lr=lr)
        curve = []
        samplers = [torch.utils.data.DistributedSampler(samples, num_replicas=replicas, rank=rank) for rank in range(replicas)]
        for epoch in range(epochs):
            for sampler in samplers:
                sampler.set_epoch(SEED + epoch)
            orders = [list(sampler) for sampler in samplers]
            for begin in range(0, len(orders[0]) - MICRO + 1, MICRO):
                optimizer.zero_grad()
                loss = 0
                for order in orders:
                    batch = [samples[i] for i in order[begin:begin + MICRO]]
                    loss = loss + torch.nn.functional.cross_entropy(self.logits(batch), torch.tensor([label for _, label in batch])) / replicas
                loss.backward()
                norm = torch.sqrt(sum((p.grad ** 2).sum() for p in self.parameters if p.grad is not None))
                curve.append((loss.item(), norm.item()))
                optimizer.step()
        return curve

    def probabilities(self, samples):
        with torch.no_grad():
            return self.logits(samples).softmax(-1)


def steps(folder):
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(event["losses"]["lm loss"], event["grad_norm"]) for event in events if event["type"] == "step"]


def check_run(pretrained, folder, task, make, layout):
    data, train, valid = make(folder)
    layout = LAYOUTS[layout]
    replicas = int(layout[0]) // 2 ** sum("parallel-size" in flag for flag in layout) if layout else 1
    pretrained.finetune(task, folder / "start", data, "--epochs", 1, "--lr", 1e-30)
    (start,) = (folder / "start").glob("iter_*")
    output = pretrained.finetune(task, folder / "run", data, "--epochs", 2, "--lr", 0.2, "--json", folder / "out.json", "--predictions",
                                 folder / "predictions.jsonl", layout=layout)
    reference = Torch(pretrained, start, task == "RACE")
    before = reference.head.weight.detach().clone()
    expected = reference.train(train, replicas, 2, 0.2)
    actual = steps(folder / "run")
    assert len(actual) == len(expected) and len(expected) >= 2
    for (loss, norm), (right_loss, right_norm) in zip(actual, expected):
        assert loss == pytest.approx(right_loss, rel=1e-4) and norm == pytest.approx(right_norm, rel=1e-3)
    assert (reference.head.weight - before).abs().max() > 0.003  # the weights did move
    check_predictions(folder, task, reference, valid, len(expected), output)


def check_predictions(folder, task, reference, valid, iterations, output):
    """Those of the last epoch, unless the first one was better."""
    figures = json.loads((folder / "out.json").read_text())
    predictions = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len(predictions) == sum(map(len, valid)) == figures["examples"]
    assert figures["epochs"][1]["iteration"] == iterations and len(figures["epochs"]) == 2
    probabilities = torch.cat([reference.probabilities(part) for part in valid])
    labels = torch.tensor([label for part in valid for _, label in part])
    if figures["best"]["epoch"] == 1:
        torch.testing.assert_close(torch.tensor([p["probabilities"] for p in predictions]), probabilities, atol=1e-4, rtol=1e-3)
    correct = (probabilities.argmax(1) == labels).sum().item()
    assert figures["correct"] == correct and figures["accuracy"] == correct / len(labels)
    assert f" >> |epoch: 1| overall: correct / total = {correct} / {len(labels)} = {100 * correct / len(labels):.4f} %" in output
    names = ["dev-middle", "dev-high"] if task == "RACE" else ["dev-matched", "dev-mismatched"]
    assert [part["name"] for part in figures["files"]] == names
    for name, part in zip(names, figures["files"]):
        assert f" > |epoch: 1| metrics for {name}: correct / total = {part['correct']} / {part['examples']} = " in output
    best = (folder / "run" / "best_checkpointed_iteration.txt").read_text().strip()
    assert int(best) == figures["best"]["iteration"]
    assert sorted(int(path.name[5:]) for path in (folder / "run").glob("iter_*")) == [iterations // 2, iterations]


LONG = pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="further layouts (--long)")


@pytest.mark.parametrize("task, layout", [("MNLI", "one"), ("MNLI", "all"), ("RACE", "dp2"), pytest.param("QQP", "tp2", marks=LONG),
                                          pytest.param("RACE", "pp2", marks=LONG), pytest.param("QQP", "dp2", marks=LONG)])
def test_training_equals_that_of_torch(pretrained, tmp_path, task, layout):
    check_run(pretrained, tmp_path, task, race if task == "RACE" else lambda folder: mnli(folder, task), layout)
