"""From a Hugging Face folder to a chat: examples/finetune_lora.sh trains adapters on conversations, evaluates before and
after, merges and serves, on the CPU within two minutes. With Chromium the question is typed into the page, else sent
to the server.
"""

import json
import os
import shutil
import subprocess
import time

import pytest
from server import CHATML, ROOT, needs_binary, serving, teratron

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [needs_binary, pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="trains for a minute (--long)")]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ANSWERS = {"cat": "fish", "dog": "bones", "cow": "grass", "hen": "corn", "owl": "mice", "bee": "honey"}


def question(animal):
    return f"What does the {animal} like?"


def hf_model(folder):
    """A Llama with random weights and a chat template."""
    chats = [{"messages": [{"role": "user", "content": question(animal)}, {"role": "assistant", "content": f"{food}"}]}
             for animal, food in ANSWERS.items()]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    prompts = [{"prompt": f"<|im_start|>user\n{question(animal)}<|im_end|>\n<|im_start|>assistant\n", "answer": food, "match": "exact",
                "max_new_tokens": 8, "stop": ["<|im_end|>"]} for animal, food in ANSWERS.items()]
    (folder / "eval.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    (folder / "text.txt").write_text("".join(f"{question(animal)} {food}\n" for animal, food in ANSWERS.items()))
    teratron("tokenizer", "train", "--input", folder / "text.txt", "--vocab-size", "300", "--output", folder / "in", "--special-tokens",
             "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    config = transformers.LlamaConfig(vocab_size=300, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.15)
    torch.manual_seed(7)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "in")
    settings = folder / "in" / "tokenizer_config.json"
    kept = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps({**kept, "chat_template": CHATML}))
    return folder / "in"


def answer_on_the_page(server, text):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as program:
        browser = program.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://{server.host}:{server.port}/")
        page.locator("[data-name=max_tokens]").fill("8")
        page.locator("[data-name=max_tokens]").dispatch_event("change")
        page.locator("[data-name=temperature]").fill("0")
        page.locator("[data-name=temperature]").dispatch_event("change")
        page.locator("#input").fill(text)
        page.keyboard.press("Enter")
        page.wait_for_selector(".turn.assistant .facts")
        answer = page.evaluate("document.querySelector('.turn.assistant').turn.text")
        browser.close()
    return answer


def answer_of(server, text):
    try:
        if CHROMIUM:
            return answer_on_the_page(server, text)
    except pytest.skip.Exception:
        pass  # no playwright
    return server.chat(text, max_tokens=8, temperature=0).json["choices"][0]["message"]["content"]


def test_from_weights_to_a_chat(tmp_path):
    model = hf_model(tmp_path)
    begin = time.monotonic()
    done = subprocess.run([ROOT / "examples" / "finetune_lora.sh", model, tmp_path / "chats.jsonl", tmp_path / "out", "--device", "cpu",
                           "--num-train-epochs", "150", "--global-batch-size", "6", "--lr", "2e-2", "--log-interval", "100", "--save-interval", "100000"],
                          capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TERATRON": os.environ["TERATRON_BINARY"], "SEQ_LENGTH": "64", "SPLIT": "1,0,0",
                               "EVAL": str(tmp_path / "eval.jsonl"), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    before, after = (json.loads((tmp_path / "out" / f"{name}.json").read_text())["exact_match"] for name in ("before", "after"))
    assert before == 0 and after == 1, done.stdout[-3000:]
    with serving(["--hf", tmp_path / "out" / "merged"]) as server:
        for animal in ("owl", "cow"):
            assert answer_of(server, question(animal)).strip() == ANSWERS[animal]
    assert time.monotonic() - begin < 120
