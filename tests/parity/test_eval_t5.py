"""`teratron eval` of a T5 against transformers, one sample at a time: the context is the encoder's text.

TERATRON_BINARY names the program.
"""
import json
import math
import random

import pytest
import test_hf_t5
from test_eval import command, words
from test_hf_conversion import run, torch, transformers

tokenizers = pytest.importorskip("tokenizers")


class Reference:
    """A random T5 over letters, whose decoder begins with <pad> and whose texts end with </s>."""

    def __init__(self, folder, name):
        self.folder = folder
        pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in "abcdefghijklmnopqrstuvwxyz"),
                  ("▁a", -2.5), ("th", -2.5), ("in", -2.6)]
        made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
        made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
        made.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
        made.add_special_tokens(["<pad>", "</s>", "<unk>"])
        self.model = test_hf_t5.random_model(name)
        self.model.generation_config.decoder_start_token_id = 0
        test_hf_t5.save(self.model, folder)
        transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", unk_token="<unk>", pad_token="<pad>").save_pretrained(folder)
        self.tokenizer, self.model = made, self.model.double().eval()

    def score(self, context, continuation):
        source = self.tokenizer.encode(context).ids
        target = self.tokenizer.encode(continuation, add_special_tokens=False).ids
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[0, *target[:-1]]])).logits
        logprobs = logits[0].log_softmax(-1)
        ids = torch.tensor(target)
        return logprobs.gather(1, ids[:, None]).sum().item(), bool((logprobs.argmax(1) == ids).all()), len(target)


@pytest.mark.parametrize("name", ["v1.0", "v1.1"])
def test_figures(name, tmp_path):
    reference = Reference(tmp_path / "in", name)
    chosen = random.Random(11)
    lines, accuracy, norm, likelihood, greedy, tokens = [], [], [], [], [], 0
    for _ in range(10):
        context = words(chosen, chosen.randint(1, 7))
        continuation = words(chosen, 2)
        lines.append({"context": context, "continuation": continuation})
        score, best, count = reference.score(context, continuation)
        likelihood.append(score)
        greedy.append(best)
        tokens += count
        choices = [words(chosen, chosen.randint(1, 3)) for _ in range(chosen.randint(2, 4))]
        answer = chosen.randrange(len(choices))
        lines.append({"context": context, "choices": choices, "answer": answer})
        scores = [reference.score(context, choice)[0] for choice in choices]
        accuracy.append(scores.index(max(scores)) == answer)
        per_character = [score / len(choice) for score, choice in zip(scores, choices)]
        norm.append(per_character.index(max(per_character)) == answer)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    expected = {"log_likelihood": sum(likelihood) / 10, "token_perplexity": math.exp(-sum(likelihood) / tokens), "tokens": tokens,
                "accuracy": sum(accuracy) / 10, "accuracy_norm": sum(norm) / 10, "greedy": sum(greedy) / 10, "samples": 20}
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "run")
    for layout, source in [((), ("--hf", tmp_path / "in")), (("2",), ("--hf", tmp_path / "in")),
                           (("2", "--tensor-model-parallel-size", "2"), ("--load", tmp_path / "run"))]:
        command(layout, "eval", *source, "--data", tmp_path / "data.jsonl", "--json", tmp_path / "out.json")
        figures = json.loads((tmp_path / "out.json").read_text())
        for key, value in expected.items():
            assert figures[key] == pytest.approx(value, rel=2e-5), (layout, key)
