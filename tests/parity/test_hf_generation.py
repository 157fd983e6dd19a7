"""Greedy and beam search of the built program on random tiny models in fp32, token for token those of `transformers`.

TERATRON_BINARY names the program.
"""
import json

import pytest
from test_hf_conversion import random_model, run, torch

NAMES = ["gpt2", "llama2", "llama-gqa", "llama3-rope", "mistral", "mistral-window", "qwen2", "qwen2.5-window", "qwen3"]
PROMPTS = [[5, 17, 3], [60], [9, 8, 7, 6, 5, 4, 3, 2, 1, 90, 33, 41], [100, 2, 50, 50, 50, 7, 7]]
NEW = 30


def reference(model, prompt, **options):
    with torch.no_grad():
        out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                             max_new_tokens=NEW, do_sample=False, pad_token_id=0, return_dict_in_generate=True,
                             output_scores=True, **options)
    texts = [row[len(prompt):].tolist() for row in out.sequences]
    scores = out.sequences_scores.tolist() if "num_beams" in options else None
    return texts, scores


def without_end(tokens, end):
    """transformers pads beams and keeps the end token, which a hypothesis here does not have."""
    return tokens[:tokens.index(end)] if end in tokens else tokens


def answers(folder, checkpoint, lines, *flags):
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("generate", "--load", checkpoint, "--device", "cpu", "--input", folder / "in.jsonl", "--output",
        folder / "out.jsonl", *flags)
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", params=NAMES)
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = random_model(request.param)
    model.generation_config.eos_token_id = None
    model.generation_config.bos_token_id = None
    model.save_pretrained(folder / "in")
    run("ckpt", "convert", "--from-hf", folder / "in", "--save", folder / "ckpt")
    return model, folder


def test_greedy_texts_of_a_batch(model, tmp_path):
    """All prompts at once here, one by one there: neither batch nor padding changes a text."""
    model, folder = model
    lines = [{"tokens": prompt, "top_k": 1, "max_new_tokens": NEW} for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, answers(tmp_path, folder / "ckpt", lines)):
        assert answer["tokens"] == reference(model, prompt)[0][0], prompt
        assert answer["finish_reason"] == "length" and answer["text"] is None


@pytest.mark.parametrize("width, penalty, end", [(3, 1.0, None), (4, 2.0, 11), (2, 0.0, 40)])
def test_beams_and_their_scores(model, tmp_path, width, penalty, end):
    model, folder = model
    lines = [{"tokens": prompt, "num_beams": width, "num_return_sequences": width, "length_penalty": penalty,
              "max_new_tokens": NEW} | ({"stop_token": end} if end else {}) for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, answers(tmp_path, folder / "ckpt", lines)):
        texts, scores = reference(model, prompt, num_beams=width, num_return_sequences=width, length_penalty=penalty,
                                  early_stopping=False, eos_token_id=end)
        assert [choice["tokens"] for choice in answer["choices"]] == [without_end(text, end) for text in texts], prompt
        torch.testing.assert_close(torch.tensor([choice["score"] for choice in answer["choices"]]),
                                   torch.tensor(scores), atol=1e-4, rtol=1e-4)


def test_log_probabilities(model, tmp_path):
    model, folder = model
    lines = [{"tokens": prompt, "top_k": 1, "max_new_tokens": 5, "logprobs": True} for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, answers(tmp_path, folder / "ckpt", lines)):
        tokens = torch.tensor([prompt + answer["tokens"]])
        with torch.no_grad():
            logprobs = model(tokens).logits[0, :-1].log_softmax(-1)
        expected = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(answer["logprobs"]), expected, atol=1e-4, rtol=1e-4)
