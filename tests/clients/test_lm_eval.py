"""lm_eval on a small task: local-completions gives the accuracy that transformers gives for the exported model."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from server import needs_binary, teratron

pytest.importorskip("lm_eval", reason="needs tests/clients/requirements.txt (./run test --long)")
pytestmark = needs_binary

TASK = """task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
---
"""


def documents():
    chosen = random.Random(1)
    animals, verbs, foods = ("cat", "dog", "owl"), ("sees", "eats", "likes"), ("fish", "mice", "corn", "hay")
    return [{"text": f"The {chosen.choice(animals)} {chosen.choice(verbs)}", "choices": [f"{food}." for food in chosen.sample(foods, 3)],
             "label": chosen.randrange(3)} for _ in range(60)]


def reference(tmp_path, run, docs):
    """Accuracies by transformers, in the environment of the tests."""
    teratron("ckpt", "convert", "--to-hf", tmp_path / "hf", "--load", run)
    program = f"""
import json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
model = AutoModelForCausalLM.from_pretrained({str(tmp_path / 'hf')!r}, dtype=torch.float32)
tokenizer = PreTrainedTokenizerFast(tokenizer_file={str(run.parent / 'tokenizer' / 'tokenizer.json')!r})
acc = norm = 0
for doc in json.load(open({str(tmp_path / 'docs.json')!r})):
    scores = []
    for choice in doc["choices"]:
        context, whole = (tokenizer(text)["input_ids"] for text in (doc["text"], doc["text"] + " " + choice))
        with torch.no_grad():
            logprobs = model(torch.tensor([whole])).logits[0].log_softmax(-1)
        scores.append(sum(logprobs[i - 1, whole[i]].item() for i in range(len(context), len(whole))))
    acc += max(range(3), key=lambda i: scores[i]) == doc["label"]
    norm += max(range(3), key=lambda i: scores[i] / len(doc["choices"][i])) == doc["label"]
print(json.dumps([acc, norm]))
"""
    (tmp_path / "docs.json").write_text(json.dumps(docs))
    python = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "python"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return [count / len(docs) for count in json.loads(done.stdout.splitlines()[-1])]


def test_accuracy_equals_that_of_transformers(server, run, tmp_path):
    docs = documents()
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    (tmp_path / "tiny_choice.yaml").write_text(TASK.format(data=tmp_path / "data.jsonl").removesuffix("---\n"))
    arguments = (f"model={server.name},base_url=http://{server.host}:{server.port}/v1/completions,tokenizer_backend=huggingface,"
                 f"tokenizer={run.parent / 'tokenizer'},num_concurrent=4,max_retries=1")
    done = subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--tasks", "tiny_choice",
                           "--include_path", tmp_path, "--output_path", tmp_path / "out"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (result,) = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("results*.json")]
    values = result["results"]["tiny_choice"]
    ours = [values["acc,none"], values["acc_norm,none"]]
    expected = reference(tmp_path, run, docs)
    assert all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(ours, expected)), (ours, expected)
    assert 0.1 < expected[0] < 0.9
    # The same task without a server.
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"context": doc["text"], "choices": doc["choices"], "answer": doc["label"], "delimiter": " "}) + "\n" for doc in docs))
    teratron("eval", "--load", run, "--data", tmp_path / "lines.jsonl", "--json", tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [figures["accuracy"], figures["accuracy_norm"]] == pytest.approx(ours, abs=1e-9)


CHAT_TASK = """task: tiny_answers
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: answer
generation_kwargs: {{until: ["."], max_gen_toks: 8, temperature: 0, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


def test_generation_by_chats(server, tmp_path):
    texts = [f"What does the {animal} like?" for animal in ("cat", "dog", "owl", "bee")]
    def answer_of(text):
        message = server.chat(text, max_tokens=8, temperature=0, stop=["."]).json["choices"][0]["message"]
        return message["content"]
    answers = [answer_of(text) for text in texts]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": text, "answer": answer if i % 2 else "x" + answer}) + "\n"
                                                 for i, (text, answer) in enumerate(zip(texts, answers))))
    (tmp_path / "tiny_answers.yaml").write_text(CHAT_TASK.format(data=tmp_path / "data.jsonl"))
    arguments = f"model={server.name},base_url=http://{server.host}:{server.port}/v1/chat/completions,num_concurrent=2,max_retries=1"
    done = subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-chat-completions", "--apply_chat_template", "--model_args", arguments, "--tasks",
                           "tiny_answers", "--include_path", tmp_path, "--output_path", tmp_path / "out"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (result,) = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("results*.json")]
    assert result["results"]["tiny_answers"]["exact_match,none"] == 0.5
