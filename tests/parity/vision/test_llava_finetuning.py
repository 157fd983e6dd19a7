"""`finetune vlm`: a small model learns to name drawings, in every layout; what is wrong with lines and images."""

import base64
import json
import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL")
from drawings import SIZE, draw, model_folder, write_lines  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from test_llava import run  # noqa: E402

HELD_OUT = range(100_000, 100_060)
STEP = ["--device", "cpu", "--log-interval", 1, "--eval-iters", 0, "--split", "1,0,0", "--seq-length", 96, "--chat-template", "plain"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawings")
    model_folder(folder / "in")
    (folder / "images").mkdir()
    write_lines(folder / "train.jsonl", folder / "images", range(900))
    write_lines(folder / "mixed.jsonl", folder / "images", range(48), text_every=3)
    return folder


def pixels_of(folder, numbers):
    processor = transformers.AutoImageProcessor.from_pretrained(folder, use_fast=False)
    images = []
    for number in numbers:
        path = folder / "drawing.png"
        name = draw(path, number)
        images.append((processor(Image.open(path), return_tensors="pt")["pixel_values"], name))
    return images


def names_of(folder, images):
    """What the model writes after the rows of an image alone."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    rows = (SIZE // 8) ** 2
    pixels = torch.cat([values for values, _ in images])
    tokens = torch.tensor([256] + [model.config.image_token_id] * rows)[None].repeat(len(images), 1)
    with torch.no_grad():
        made = model.generate(input_ids=tokens, pixel_values=pixels, attention_mask=torch.ones_like(tokens), max_new_tokens=16, do_sample=False)
    return [tokenizer.decode(line[tokens.shape[1]:], skip_special_tokens=True).split("\n")[0] for line in made]


def finetune(data, out, *flags, lines="train.jsonl", **expected):
    return run("finetune", "vlm", "--hf", data / "in", "--data-path", data / lines, "--image-folder", data / "images", *STEP,
               *(["--hf-out", out] if out else []), *flags, **expected)


def test_names_held_out_drawings(data, tmp_path):
    finetune(data, tmp_path / "out", "--micro-batch-size", 8, "--global-batch-size", 16, "--lr", "3e-3", "--train-iters", 400,
             "--lr-decay-style", "cosine", "--lr-warmup-iters", 20, "--save", tmp_path / "run", "--num-workers", 2, "--log-interval", 100)
    images = pixels_of(data / "in", HELD_OUT)
    names = names_of(tmp_path / "out", images)
    right = sum(name == expected for name, (_, expected) in zip(names, images))
    assert right > 0.95 * len(images), list(zip(names, (expected for _, expected in images)))


def test_only_the_projector(data, tmp_path):
    """Both freezes: other tensors stay, to the last bit."""
    finetune(data, tmp_path / "out", "--freeze-LM", "--freeze-ViT", "--micro-batch-size", 2, "--global-batch-size", 4, "--lr", "1e-2",
             "--train-iters", 3)
    one, other = (transformers.LlavaForConditionalGeneration.from_pretrained(folder).state_dict() for folder in (data / "in", tmp_path / "out"))
    changed = {name for name in one if not torch.equal(one[name], other[name])}
    assert changed and all(".multi_modal_projector." in name for name in changed)


def losses(text):
    return [float(loss) for loss in re.findall(r"lm loss: (\S+)", text)]


@pytest.fixture(scope="module")
def alone(data):
    return losses(finetune(data, None, "--micro-batch-size", 2, "--global-batch-size", 8, "--lr", "1e-3", "--train-iters", 4, lines="mixed.jsonl"))


@pytest.mark.parametrize("ranks, flags", [(2, ["--tp", 2]), (2, ["--pp", 2]), (2, []), (2, ["--cp", 2]), (4, ["--tp", 2, "--pp", 2, "--sequence-parallel"]),
                                          (2, ["--use-distributed-optimizer"])], ids=str)
def test_layouts_train_alike(data, alone, ranks, flags):
    """With lines that have no image."""
    text = run("launch", "--backend", "threads", "--nproc-per-node", ranks, "--", "finetune", "vlm", "--hf", data / "in", "--data-path",
               data / "mixed.jsonl", "--image-folder", data / "images", *STEP, "--micro-batch-size", 2, "--global-batch-size", 8, "--lr", "1e-3",
               "--train-iters", 4, *flags)
    assert len(alone) == 4 and losses(text) == pytest.approx(alone, rel=2e-4)


def test_forms_of_lines(data, tmp_path):
    """One loss, whatever the line looks like: LLaVA's, parts of messages, a prompt, a data: URI, no marker."""
    draw(tmp_path / "a.png", 7)
    uri = "data:image/png;base64," + base64.b64encode((tmp_path / "a.png").read_bytes()).decode()
    answer, asked = "blue bar", "What is it?"
    forms = [{"image": "a.png", "conversations": [{"from": "human", "value": f"<image>\n{asked}"}, {"from": "gpt", "value": answer}]},
             {"image": "a.png", "conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": answer}]},
             {"images": ["a.png"], "prompt": f"<image>\n{asked}", "completion": answer},
             {"image": uri, "prompt": asked, "completion": answer},
             {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": f"\n{asked}"}]},
                           {"role": "assistant", "content": answer}]},
             {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": f"\n{asked}"}]},
                           {"role": "assistant", "content": [{"type": "text", "text": answer}]}]}]
    found = set()
    for i, form in enumerate(forms):
        (tmp_path / f"{i}.jsonl").write_text(json.dumps(form) + "\n")
        text = run("finetune", "vlm", "--hf", data / "in", "--data-path", tmp_path / f"{i}.jsonl", "--image-folder", tmp_path, *STEP[:-1], "identity",
                   "--micro-batch-size", 1, "--global-batch-size", 1, "--train-iters", 1, "--lr", "1e-3")
        found.update(losses(text))
    assert len(found) == 1, found


def line(**fields):
    return json.dumps({"conversations": [{"from": "human", "value": "<image>\n?"}, {"from": "gpt", "value": "x"}], **fields}) + "\n"


@pytest.mark.parametrize("text, says", [
    (line(image="../in/config.json"), ["lines.jsonl:1", "../in/config.json", "--image-folder"]),
    (line(image="/etc/passwd"), ["/etc/passwd", "--image-folder"]), (line(image="https://a.b/c.png"), ["https://a.b/c.png", "nothing is fetched"]),
    (line(image="none.png"), ["lines.jsonl:1", "none.png"]), (line(image="text.png"), ["lines.jsonl:1: text.png"]),
    (line(image=["0.png", "1.png"]), ["1 <image>", "2 images"]), (line(), ["1 <image>", "0 images"]), (line(image=7), ["name of a file"]),
    (line(image="data:image/png;base64,@@"), ["data: URI"]), (line(image="0.png").replace("?", "?" * 200), ["--seq-length", "longer than a row"])])
def test_bad_lines(data, tmp_path, text, says):
    (data / "images" / "text.png").write_text("no image")
    (data / "images" / "0.png").exists() or draw(data / "images" / "0.png", 0)
    (tmp_path / "lines.jsonl").write_text(text)
    flags = STEP if "longer than a row" not in says else [*STEP[:-1], "vicuna"]
    said = run("finetune", "vlm", "--hf", data / "in", "--data-path", tmp_path / "lines.jsonl", "--image-folder", data / "images", *flags,
               "--micro-batch-size", 1, "--global-batch-size", 1, "--train-iters", 1, "--lr", "1e-3", "--sft-overlong", "error", code=3)
    assert all(word in said for word in says), said


def test_another_processor(data, tmp_path):
    for file in (data / "in").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**settings, "crop_size": {"height": 28, "width": 28}}))
    said = run("finetune", "vlm", "--hf", tmp_path, "--data-path", data / "mixed.jsonl", "--image-folder", data / "images", *STEP,
               "--micro-batch-size", 1, "--global-batch-size", 1, "--train-iters", 1, "--lr", "1e-3", code=2)
    assert "28 x 28" in said and f"{SIZE} x {SIZE}" in said


def test_stopping_and_going_on(data, tmp_path):
    """The same weights as without a stop."""
    flags = ["--micro-batch-size", 2, "--global-batch-size", 4, "--lr", "1e-3", "--lr-decay-style", "constant"]
    finetune(data, tmp_path / "whole", *flags, "--train-iters", 6, lines="mixed.jsonl")
    finetune(data, None, *flags, "--train-iters", 3, "--save", tmp_path / "run", lines="mixed.jsonl")
    finetune(data, tmp_path / "parts", *flags, "--train-iters", 6, "--save", tmp_path / "run", lines="mixed.jsonl")
    one, other = load_file(tmp_path / "whole" / "model.safetensors"), load_file(tmp_path / "parts" / "model.safetensors")
    assert all(one[name].equal(other[name]) for name in one)
