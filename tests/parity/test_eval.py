"""`teratron eval`, WikiText-103 and LAMBADA against `transformers`, in fp64 and one sample at a time, in several layouts."""
import json
import math
import os
import random

import pytest
from test_hf_conversion import run, torch, transformers

tokenizers = pytest.importorskip("tokenizers")

POSITIONS, END = 48, "<|endoftext|>"
LETTERS = "abcdefghijklmnopqrstuvwxyz "
LAYOUTS = [(), ("2",), ("2", "--tensor-model-parallel-size", "2"), ("2", "--pipeline-model-parallel-size", "2"),
           ("4", "--tensor-model-parallel-size", "2")]
SOME = LAYOUTS if os.environ.get("TERATRON_LONG_TESTS") else [LAYOUTS[0], LAYOUTS[4]]


def command(layout, *args):
    return run(*(["launch", "--nproc-per-node", layout[0], "--"] if layout else []), *args, *layout[1:], "--device", "cpu")


class Reference:
    """A random GPT-2 over bytes, whose answers are mostly letters."""

    def __init__(self, folder):
        self.folder = folder
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(["in the end of the day " * 9], tokenizers.trainers.BpeTrainer(
            vocab_size=262, initial_alphabet=alphabet, special_tokens=[END], show_progress=False))
        self.tokenizer = tokenizer
        self.end = tokenizer.token_to_id(END)
        torch.manual_seed(3)
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=tokenizer.get_vocab_size(),
                                         n_positions=POSITIONS, bos_token_id=self.end, eos_token_id=self.end)
        self.model = transformers.GPT2LMHeadModel(config)
        letters = [i for i in range(config.vocab_size) if set(tokenizer.decode([i])) <= set(LETTERS) and tokenizer.decode([i])]
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
            others = [i for i in range(config.vocab_size) if i not in letters]
            self.model.transformer.wte.weight[others] *= 0.1
        self.model.save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, model_max_length=POSITIONS).save_pretrained(folder)
        self.model.double().eval()

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def logprobs(self, ids):
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].log_softmax(-1)

    def score(self, ids, first):
        """Log likelihood of ids[first:], and whether each is the most probable one."""
        logprobs = self.logprobs(ids[:-1])[first - 1:]
        targets = torch.tensor(ids[first:])
        return logprobs.gather(1, targets[:, None]).sum().item(), bool((logprobs.argmax(1) == targets).all())

    def continuation(self, context, continuation):
        """As lm-evaluation-harness."""
        stripped = context.rstrip()
        continuation, context = context[len(stripped):] + continuation, stripped
        before, whole = self.encode(context), self.encode(context + continuation)
        if not before:
            before, whole = [self.end], [self.end, *whole]
        length = len(whole) - len(before)
        whole = whole[-(POSITIONS + 1):]
        return (*self.score(whole, len(whole) - length), length)

    def greedy(self, prompt, count):
        ids = self.encode(prompt)
        for _ in range(count):
            following = self.logprobs(ids)[-1].argmax().item()
            if following == self.end:
                break
            ids.append(following)
        return self.tokenizer.decode(ids)[len(prompt):]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return Reference(tmp_path_factory.mktemp("bytes"))


def words(chosen, count):
    return " ".join("".join(chosen.choice(LETTERS[:-1]) for _ in range(chosen.randint(1, 6))) for _ in range(count))


def eval_lines(reference):
    chosen = random.Random(4)
    lines = []
    for i in range(12):
        context = words(chosen, chosen.randint(1, 7)) + chosen.choice(["", " ", "  "])
        greedy = i % 3 == 0
        lines.append({"context": context if i else "", "continuation": reference.greedy(context, 3) or "x" if greedy else " " + words(chosen, 1)})
        choices = [" " + words(chosen, chosen.randint(1, 3)) for _ in range(chosen.randint(2, 4))]
        lines.append({"context": context, "choices": choices, "answer": chosen.randrange(len(choices)), "id": i})
        prompt = words(chosen, 3)
        answer = reference.greedy(prompt, 5).strip()
        lines.append({"prompt": prompt, "answer": answer if i % 2 else "none of it", "max_new_tokens": 5})
    lines.append({"context": words(chosen, 40), "continuation": " the end"})  # longer than the model's positions
    return lines


def expected_figures(reference, lines):
    accuracy, norm, byte, greedy, likelihood, tokens, exact = [], [], [], [], [], 0, []
    for line in lines:
        if "choices" in line:
            scores = [reference.continuation(line["context"], choice)[0] for choice in line["choices"]]

            def right(length):
                values = [score / length(choice) for score, choice in zip(scores, line["choices"])]
                return values.index(max(values)) == line["answer"]
            accuracy.append(right(lambda choice: 1))
            norm.append(right(len))
            byte.append(right(lambda choice: len(choice.encode())))
        elif "prompt" in line:
            exact.append(reference.greedy(line["prompt"], 5).strip() == line["answer"])
        else:
            score, most_probable, count = reference.continuation(line["context"], line["continuation"])
            likelihood.append(score)
            greedy.append(most_probable)
            tokens += count

    def mean(values):
        return sum(values) / len(values)
    return {"accuracy": mean(accuracy), "accuracy_norm": mean(norm), "accuracy_bytes": mean(byte), "greedy": mean(greedy),
            "exact_match": mean(exact), "log_likelihood": mean(likelihood), "perplexity": math.exp(-mean(likelihood)),
            "token_perplexity": math.exp(-sum(likelihood) / tokens), "tokens": tokens, "samples": len(lines)}


def test_figures_in_every_layout(reference, tmp_path):
    lines = eval_lines(reference)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    expected = expected_figures(reference, lines)
    assert 0.1 < expected["greedy"] < 0.9 and 0.2 < expected["exact_match"] < 0.8 and 0.1 < expected["accuracy"] < 0.9
    results = []
    for layout in [*SOME, LAYOUTS[3]]:
        output = command(layout, "eval", "--hf", reference.folder, "--data", tmp_path / "data.jsonl", "--json", tmp_path / "out.json",
                         "--predictions", tmp_path / "samples.jsonl")
        assert "1 of" in output and "lost their beginning" in output
        results.append(json.loads((tmp_path / "out.json").read_text()))
        for name, value in expected.items():
            assert results[-1][name] == pytest.approx(value, rel=2e-5), (layout, name)
        samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
        assert [sample["line"] for sample in samples] == list(range(1, len(lines) + 1)) and samples[1]["id"] == 0
        assert sum(sample.get("correct", 0) for sample in samples) == round(12 * (expected["accuracy"] + expected["exact_match"]))
    errors = results[0]["stderr"]
    assert all(result["stderr"] == pytest.approx(errors, rel=1e-4) for result in results)
    # About the standard deviation of a mean.
    assert errors["accuracy"] == pytest.approx(math.sqrt(expected["accuracy"] * (1 - expected["accuracy"]) / 12), rel=0.15)


def windows(tokens, length, overlap):
    """Summed cross entropies: (window, targets that count)."""
    count = max(math.ceil(max(len(tokens) - 1 - overlap, 0) / overlap) + 1, 1)
    for i in range(count):
        window = tokens[i * overlap:i * overlap + length + 1]
        first = length - overlap + 1 if i > 0 and overlap < length else 1
        if len(window) > first:
            yield window, first


@pytest.mark.parametrize("overlap, length, layouts", [(5, 16, SOME), (32, 48, LAYOUTS[3:4]), (48, 48, LAYOUTS[:1])])
def test_wikitext(reference, tmp_path, overlap, length, layouts):
    chosen = random.Random(7)
    text = " = A = \n " + " \n ".join(words(chosen, 9) + " , " + words(chosen, 3) + " @-@ on ( " + words(chosen, 2) + " ) . " for _ in range(5)) + " \n"
    path = tmp_path / "wiki.test.tokens"
    path.write_text(text)
    plain = text
    for old, new in [(" @-@ ", "-"), (" . ", ". "), (" , ", ", "), ("( ", "("), (" )", ")"), (" \n", "\n"), ("\n ", "\n")]:
        plain = plain.replace(old, new)
    tokens = reference.encode(plain)
    loss = -sum(reference.score(window, first)[0] for window, first in windows(tokens, length, overlap)) / (len(tokens) - 1)
    original = len(text.strip().split(" "))
    ratio = (len(tokens) - 1) / (original - 1)
    for layout in layouts:
        output = command(layout, "tasks", "--task", "WIKITEXT103", "--hf", reference.folder, "--valid-data", path, "--json",
                         tmp_path / "out.json", "--overlapping-eval", overlap, "--seq-length", length, "--micro-batch-size", 4,
                         "--log-interval", 2)
        figures = json.loads((tmp_path / "out.json").read_text())
        assert figures["loss"] == pytest.approx(loss, rel=1e-5)
        assert figures["perplexity"] == pytest.approx(math.exp(min(20, loss)), rel=1e-4)
        assert figures["adjusted_perplexity"] == pytest.approx(math.exp(min(20, loss * ratio)), rel=1e-4)
        assert (figures["tokens"], figures["original_tokens"]) == (len(tokens), original)
        lines = output.splitlines()
        assert f" > number of original tokens: {original}, number of detokenized tokens: {len(tokens)}" in lines
        result = next(line for line in lines if line.startswith(" validation results on WIKITEXT103 | avg loss: "))
        assert result == (f" validation results on WIKITEXT103 | avg loss: {figures['loss']:.4E} | ppl: {figures['perplexity']:.4E} | "
                          f"adjusted ppl: {figures['adjusted_perplexity']:.4E} | token ratio: {ratio} |")
        box = lines.index(result)
        assert lines[box - 1] == lines[box + 1] == "-" * (len(result) + 1)
        assert "> working on iteration: 0" in lines and "> working on iteration: 1" not in lines and "done :-)" in lines


def lambada_texts(reference):
    """Some whose last token, and some whose last word, the model predicts."""
    chosen = random.Random(2)
    plain, strict = [], []
    while len(plain) < 8 or len(strict) < 6:
        context = words(chosen, chosen.randint(2, 5))
        answer = reference.greedy(context, 3)
        if not answer.isascii() or not answer.strip() or not set(answer) <= set(LETTERS):
            continue
        if len(plain) < 8:
            plain.append(context + reference.greedy(context, 1))
        word = answer.split(" ")[1] if answer.startswith(" ") and answer[1:2].strip() else None
        if word and len(strict) < 6:
            strict.append(context + " " + word)
    return plain + strict + [words(chosen, 4) for _ in range(7)]


def test_lambada(reference, tmp_path):
    texts = lambada_texts(reference)
    for name, part in (("all", texts), ("more", texts[:5])):
        (tmp_path / f"lambada_{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    for strict in (False, True):
        correct = []
        for text in texts:
            if strict:
                word = text.split()[-1]
                context, label = reference.encode(text[:text.rfind(word)].strip()), reference.encode(" " + word)
            else:
                ids = reference.encode(text)
                context, label = ids[:-1], ids[-1:]
            correct.append(reference.score(context + label, len(context))[1])
        assert 3 < sum(correct) < len(texts) - 3, (strict, correct)
        for layout in SOME:
            output = command(layout, "tasks", "--task", "LAMBADA", "--hf", reference.folder, "--valid-data", tmp_path / "lambada_all.jsonl",
                             tmp_path / "lambada_more.jsonl", "--json", tmp_path / "out.json", *(["--strict-lambada"] if strict else []))
            figures = json.loads((tmp_path / "out.json").read_text())
            first, second = figures["files"]
            assert (first["correct"], first["examples"]) == (sum(correct), len(texts))
            assert (second["correct"], second["examples"]) == (sum(correct[:5]), 5)
            assert figures["correct"] == sum(correct) + sum(correct[:5]) and figures["accuracy"] == figures["correct"] / (len(texts) + 5)
            assert (f" validation results on LAMBADA | number correct: {sum(correct):.4E} | total examples: {len(texts):.4E} | "
                    f"avg accuracy: {sum(correct) / len(texts):.4E}") in output
            assert f" > found {len(texts)} samples." in output
