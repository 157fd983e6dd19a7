"""`generate` with images: the ids of transformers."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL")
from drawings import draw, model_folder  # noqa: E402
from PIL import Image  # noqa: E402
from test_llava import run  # noqa: E402

NEW = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generation")
    model_folder(folder / "in")
    model = transformers.LlavaForConditionalGeneration.from_pretrained(folder / "in")
    torch.manual_seed(1)
    with torch.no_grad():  # answers that differ between images
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder / "in")
    for number in range(4):
        draw(folder / f"{number}.png", number)
    run("ckpt", "convert", "--from-hf", folder / "in", "--save", folder / "ckpt")
    return folder, model.eval()


def requests(folder, image):
    for tokens, images in [([256, image, 5, 6], [0]), ([9, image, 7, image, 3], [1, 2]), ([4, 5, 6], []), ([image], [3]), ([image, image], [0, 0]),
                           ([1] * 30 + [image] + [2] * 20, [2])]:
        yield {"tokens": tokens, "images": [str(folder / f"{number}.png") for number in images], "max_new_tokens": NEW, "top_k": 1}


def expected(model, folder, request):
    processor = transformers.AutoImageProcessor.from_pretrained(folder / "in", use_fast=False)
    image = model.config.image_token_id
    tokens = [one for token in request["tokens"] for one in ([token] * 16 if token == image else [token])]
    pixels = [processor(Image.open(name), return_tensors="pt")["pixel_values"] for name in request["images"]]
    with torch.no_grad():
        made = model.generate(input_ids=torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                              max_new_tokens=NEW, do_sample=False, **({"pixel_values": torch.cat(pixels)} if pixels else {}))
    return made[0, len(tokens):].tolist()


@pytest.mark.parametrize("flags, ranks", [([], 1), (["--tp", 2], 2), (["--pp", 2], 2)], ids=str)
@pytest.mark.parametrize("source", ["--load", "--hf"])
def test_greedy_ids(data, tmp_path, source, flags, ranks):
    folder, model = data
    asked = list(requests(folder, model.config.image_token_id))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in asked))
    launch = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--"] if ranks > 1 else []
    run(*launch, "generate", source, folder / ("ckpt" if source == "--load" else "in"), "--device", "cpu", "--input", tmp_path / "in.jsonl", "--output",
        tmp_path / "out.jsonl", *flags)
    answers = [json.loads(line)["tokens"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert answers == [expected(model, folder, request) for request in asked]
    assert len({tuple(answer) for answer in answers}) > 2


@pytest.mark.parametrize("request_, says", [
    ({"tokens": [259, 259], "images": ["0.png"]}, ["2 image tokens", "1 images"]), ({"tokens": [1], "images": ["0.png"]}, ["0 image tokens", "1 images"]),
    ({"tokens": [259]}, ["1 image tokens", "0 images"]), ({"tokens": [259], "images": ["none.png"]}, ["none.png"]),
    ({"tokens": [259], "images": ["text.png"]}, ["text.png"]), ({"tokens": [259], "images": 5}, ["images"])])
def test_bad_requests(data, tmp_path, request_, says):
    folder, model = data
    (folder / "text.png").write_text("no image")
    assert model.config.image_token_id == 259
    (tmp_path / "in.jsonl").write_text(json.dumps({**request_, "max_new_tokens": 2}) + "\n")
    said = run("generate", "--load", folder / "ckpt", "--device", "cpu", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl",
               "--image-folder", folder, code=3)
    assert all(word in said for word in ["in.jsonl:1", *says]), said
