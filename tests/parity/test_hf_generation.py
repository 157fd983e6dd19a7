"""Greedy and beam search of the built program on random tiny models in fp32, token for token those of `transformers`:
GPT of several families, and T5.

TERATRON_BINARY names the program.
"""
import json

import pytest
import test_hf_t5
from test_hf_conversion import random_model, run, torch

NAMES = ["gpt2", "llama2", "llama-gqa", "llama3-rope", "yarn", "mistral", "mistral-window", "qwen2", "qwen2.5-window", "qwen3", "mamba2",
         "nemotron_h-moe", "qwen3_next", "qwen3_5_text", "deepseek_v3", "deepseek_v2"]
GREEDY = ["phi3", "starcoder2", "glm4_moe", "minimax_m2", "ernie4_5_moe", "cohere-qk-norm", "cohere2", "nanochat", "llama4_text"]
PROMPTS = [[5, 17, 3], [60], [9, 8, 7, 6, 5, 4, 3, 2, 1, 90, 33, 41], [100, 2, 50, 50, 50, 7, 7]]
NEW = 30
T5_NAMES = ["v1.0", "v1.0-wide", "v1.1", "v1.1-wide", "mt5", "mt5-wide"]
BEAMS = [(3, 1.0, None), (4, 2.0, 11), (2, 0.0, 40)]


def reference(model, prompt, skip=None, **options):
    """Texts without their first `skip` tokens: the prompt's."""
    skip = len(prompt) if skip is None else skip
    with torch.no_grad():
        out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                             max_new_tokens=NEW, do_sample=False, pad_token_id=0, return_dict_in_generate=True,
                             output_scores=True, **options)
    texts = [row[skip:].tolist() for row in out.sequences]
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


def check_beams(answer, expected, end):
    texts, scores = expected
    assert [choice["tokens"] for choice in answer["choices"]] == [without_end(text, end) for text in texts]
    torch.testing.assert_close(torch.tensor([choice["score"] for choice in answer["choices"]]), torch.tensor(scores),
                               atol=1e-4, rtol=1e-4)


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


@pytest.mark.parametrize("width, penalty, end", BEAMS)
def test_beams_and_their_scores(model, tmp_path, width, penalty, end):
    model, folder = model
    lines = [{"tokens": prompt, "num_beams": width, "num_return_sequences": width, "length_penalty": penalty,
              "max_new_tokens": NEW} | ({"stop_token": end} if end else {}) for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, answers(tmp_path, folder / "ckpt", lines)):
        check_beams(answer, reference(model, prompt, num_beams=width, num_return_sequences=width,
                                      length_penalty=penalty, early_stopping=False, eos_token_id=end), end)


def test_log_probabilities(model, tmp_path):
    model, folder = model
    lines = [{"tokens": prompt, "top_k": 1, "max_new_tokens": 5, "logprobs": True} for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, answers(tmp_path, folder / "ckpt", lines)):
        tokens = torch.tensor([prompt + answer["tokens"]])
        with torch.no_grad():
            logprobs = model(tokens).logits[0, :-1].log_softmax(-1)
        expected = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(answer["logprobs"]), expected, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module", params=T5_NAMES)
def t5(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = test_hf_t5.random_model(request.param)
    model.generation_config.eos_token_id, model.generation_config.decoder_start_token_id = None, 0
    test_hf_t5.save(model, folder / "in")
    run("ckpt", "convert", "--from-hf", folder / "in", "--save", folder / "ckpt")
    return model, folder


def t5_reference(model, line, **options):
    """Without a cache: transformers 5 makes that of a decoder with as many layers as the encoder has."""
    return reference(model, line["encoder_tokens"], decoder_input_ids=torch.tensor([line["tokens"]]),
                     skip=len(line["tokens"]), use_cache=False, **options)


def t5_lines(model, **options):
    """The decoder begins with Hugging Face's start token alone, or with more."""
    sources = [[token % model.config.vocab_size for token in prompt] for prompt in PROMPTS]
    return [{"encoder_tokens": source, "tokens": start, "max_new_tokens": NEW} | options
            for source, start in zip(sources, [[0], [0, 7, 21], [0], [0, 50]])]


def test_t5_greedy_texts_of_a_batch(t5, tmp_path):
    model, folder = t5
    lines = t5_lines(model, top_k=1)
    for line, answer in zip(lines, answers(tmp_path, folder / "ckpt", lines), strict=True):
        assert answer["tokens"] == t5_reference(model, line)[0][0], line
        assert answer["finish_reason"] == "length" and answer["text"] is None


@pytest.mark.parametrize("width, penalty, end", BEAMS)
def test_t5_beams_and_their_scores(t5, tmp_path, width, penalty, end):
    model, folder = t5
    lines = t5_lines(model, num_beams=width, num_return_sequences=width, length_penalty=penalty,
                     **({"stop_token": end} if end else {}))
    for line, answer in zip(lines, answers(tmp_path, folder / "ckpt", lines), strict=True):
        check_beams(answer, t5_reference(model, line, num_beams=width, num_return_sequences=width,
                                         length_penalty=penalty, early_stopping=False, eos_token_id=end), end)


@pytest.mark.parametrize("name", ["mamba2-limits", "nemotron_h-moe", "bamba", "falcon_h1", "falcon_h1-norm", "falcon_h1-after",
                                  "granitemoehybrid", "granitemoehybrid-dense", "olmo_hybrid", "olmo_hybrid-rope", *GREEDY])
def test_texts_of_whole_forwards(name, tmp_path):
    """Those of whole forwards: in cached steps of one token transformers forgets limits of time steps."""
    model = random_model(name)
    model.generation_config.eos_token_id = model.generation_config.bos_token_id = None
    model.save_pretrained(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    lines = [{"tokens": prompt, "max_new_tokens": NEW, "top_k": 1} for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, answers(tmp_path, tmp_path / "ckpt", lines)):
        ids = list(prompt)
        for token in answer["tokens"]:
            with torch.no_grad():
                assert int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()) == token
            ids.append(token)
        assert len(answer["tokens"]) == NEW
