"""`teratron finetune --hf DIR --data-path FILE` of a T5, a BERT and a GPT, against transformers."""
import json
import re
import subprocess

import pytest

from program import BINARY, environment, needs_binary, teratron

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
from safetensors.torch import load_file  # noqa: E402

pytestmark = needs_binary

FOODS = {"cat": "fish", "dog": "meat", "owl": "mice", "cow": "grass", "hen": "corn"}
WORDS = ["what", "does", "the", "eat", "a", "red", "old", "is", "good", *FOODS, *FOODS.values()]


def run(*args, code=0):
    done = teratron(*args, code=code, timeout=200)
    return done.stdout + done.stderr


def unigram(special, words):
    """A tokenizer whose tokens are words; the last special token is the unknown one."""
    pieces = [(token, 0.0) for token in special] + [("\u2581" + word, -2.0) for word in words]
    model = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=len(special) - 1, byte_fallback=False))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    model.decoder = tokenizers.decoders.Metaspace()
    return model


def t5_folder(folder, dtype=torch.float32):
    """A small T5 with a tokenizer.json of words."""
    words = unigram(["<pad>", "</s>", "<unk>"], WORDS)
    words.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    torch.manual_seed(4)
    config = transformers.T5Config(vocab_size=len(WORDS) + 3, d_model=32, d_kv=8, d_ff=64, num_heads=4, num_layers=2, dropout_rate=0.0,
                                   pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    transformers.T5ForConditionalGeneration(config).to(dtype).save_pretrained(folder)
    return folder


def bert_folder(folder, kind="BertForPreTraining"):
    """A small BERT whose tokenizer is a tokenizer.json alone."""
    pieces = tokenizers.Tokenizer(tokenizers.models.WordPiece({word: i for i, word in enumerate(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}, unk_token="[UNK]"))
    pieces.normalizer = tokenizers.normalizers.BertNormalizer()
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    pieces.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                                         mask_token="[MASK]").save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.BertConfig(vocab_size=len(WORDS) + 5, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                     max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    getattr(transformers, kind)(config).save_pretrained(folder)
    return folder


def write(path, lines, array=False):
    path.write_text(json.dumps(lines, indent=1) if array else "".join(json.dumps(line) + "\n" for line in lines))
    return path


def question(animal, adjective="old"):
    return f"what does the {adjective} {animal} eat"


def pairs(form, animals=FOODS):
    for animal in animals:
        asked, answer = question(animal), FOODS[animal]
        yield {"prompt": {"prompt": asked, "completion": answer},
               "alpaca": {"instruction": asked, "input": "", "output": answer},
               "messages": {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]},
               "sharegpt": {"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": answer}]}}[form]


@pytest.mark.parametrize("form", ["prompt", "alpaca", "messages", "sharegpt"])
def test_first_loss_of_a_t5(form, tmp_path):
    folder = t5_folder(tmp_path / "t5")
    data = write(tmp_path / "data.json", list(pairs(form)), array=form == "alpaca")
    said = run("finetune", "--hf", folder, "--data-path", data, "--num-train-epochs", 1, "--global-batch-size", 5, "--micro-batch-size", 5,
               "--log-interval", 1, "--hf-out", tmp_path / "out", "--device", "cpu")
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    asked = tokenizer([question(animal) for animal in FOODS], return_tensors="pt", padding=True)
    labels = tokenizer(list(FOODS.values()), return_tensors="pt").input_ids
    with torch.no_grad():
        expected = float(model(input_ids=asked.input_ids, attention_mask=asked.attention_mask, labels=labels).loss)
    assert abs(float(re.search(r"lm loss: ([0-9.E+-]+)", said)[1]) - expected) <= 1e-5 * expected
    assert "5 questions and answers in rows of 512 and 512 tokens" in said


def test_a_t5_learns_answers_and_keeps_bf16(tmp_path):
    folder = t5_folder(tmp_path / "t5", torch.bfloat16)
    data = write(tmp_path / "data.jsonl", list(pairs("prompt")) * 8)
    run("finetune", "--hf", folder, "--data-path", data, "--num-train-epochs", 40, "--lr", "5e-3", "--seq-length", 16, "--decoder-seq-length", 8,
        "--global-batch-size", 8, "--micro-batch-size", 8, "--hf-out", tmp_path / "out", "--device", "cpu")
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out", dtype="auto")
    assert {weights.dtype for weights in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for animal, food in FOODS.items():
        ids = model.generate(**{"input_ids": tokenizer(question(animal), return_tensors="pt").input_ids}, max_new_tokens=4, do_sample=False)
        assert tokenizer.decode(ids[0], skip_special_tokens=True) == food


def test_a_few_lines_are_enough(tmp_path):
    """Fewer than a step takes: with the defaults, one step."""
    said = run("finetune", "--hf", t5_folder(tmp_path / "t5"), "--data-path", write(tmp_path / "data.jsonl", list(pairs("prompt"))), "--hf-out", tmp_path / "out",
               "--seq-length", 16, "--decoder-seq-length", 8, "--device", "cpu")
    assert "3 epochs of 5 samples are less than a step of 16: one step is taken" in said and (tmp_path / "out" / "model.safetensors").exists()


def test_long_pairs_of_a_t5(tmp_path):
    folder = t5_folder(tmp_path / "t5")
    data = write(tmp_path / "data.jsonl", [{"prompt": "the cat " * 20, "completion": "fish"}, {"prompt": "a cat", "completion": "fish " * 20}] * 3
                 + [{"prompt": "a dog", "completion": "meat"}])
    flags = ["finetune", "--hf", folder, "--data-path", data, "--seq-length", 8, "--decoder-seq-length", 4, "--num-train-epochs", 1, "--global-batch-size", 1,
             "--device", "cpu"]
    said = run(*flags, "--hf-out", tmp_path / "none", code=3)
    assert said.count("error: ") == 1 and "(and so in 5 more places)" in said and "--sft-overlong" in said, said
    assert "7 questions and answers in rows of 8 and 4 tokens; 6 longer ones were truncated" in run(*flags, "--sft-overlong", "truncate", "--hf-out",
                                                                                                   tmp_path / "cut")
    assert "1 questions and answers in rows of 8 and 4 tokens; 6 longer ones were dropped" in run(*flags, "--sft-overlong", "drop", "--hf-out",
                                                                                                  tmp_path / "dropped")


def test_a_t5_refuses_what_has_no_answer(tmp_path):
    folder = t5_folder(tmp_path / "t5")
    data = write(tmp_path / "data.jsonl", [{"text": "the cat"}] * 4 + [{"prompt": "the cat"}] * 2)
    said = run("finetune", "--hf", folder, "--data-path", data, "--hf-out", tmp_path / "out", "--device", "cpu", code=3)
    assert "no question and no answer for a T5 (and so in 3 more places)" in said and 'the line has no "completion" (and so in 1 more places)' in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag", ["--data-path", "--train-data"])
def test_labels_make_a_classifier_of_a_bert(flag, tmp_path):
    folder = bert_folder(tmp_path / "bert")
    texts = [{"text": f"the {adjective} {animal}", "text_b": f"is {word}", "label": i % 3}
             for adjective in ("red", "old") for word in ("good", "a") for i, animal in enumerate(FOODS)]
    data = write(tmp_path / "data.jsonl", texts)
    classes = ["--num-classes", 3] if flag == "--train-data" else []
    said = run("finetune", "--hf", folder, flag, data, *classes, "--num-train-epochs", 40, "--lr", "3e-3", "--global-batch-size", 4, "--micro-batch-size", 4,
               "--hf-out", tmp_path / "out", "--device", "cpu")
    assert "defaults of finetune: " in said and "--seq-length 32" in said
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == "BertForSequenceClassification" and model.config.num_labels == 3
    rows = tokenizer([text["text"] for text in texts], [text["text_b"] for text in texts], return_tensors="pt", padding=True)
    kinds = {"token_type_ids": rows["token_type_ids"]} if "token_type_ids" in rows else {}
    with torch.no_grad():
        found = model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"], **kinds).logits.argmax(1).tolist()
    assert found == [text["label"] for text in texts]
    # The classifier goes on with other labels of the same classes, with nothing else said.
    again = run("finetune", "--hf", tmp_path / "out", "--data-path", write(tmp_path / "two.jsonl", [t for t in texts if t["label"] < 2]),
                "--num-train-epochs", 1, "--hf-out", tmp_path / "again", "--device", "cpu")
    assert "loss: " in again and json.loads((tmp_path / "again" / "config.json").read_text())["id2label"].keys() == {"0", "1", "2"}


def test_numbers_make_a_regression(tmp_path):
    folder = bert_folder(tmp_path / "bert")
    data = write(tmp_path / "data.jsonl", [{"text": f"the {animal}", "label": i / 4} for i, animal in enumerate(FOODS)] * 4)
    run("finetune", "--hf", folder, "--data-path", data, "--num-train-epochs", 1, "--hf-out", tmp_path / "out", "--device", "cpu")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["problem_type"] == "regression"


@pytest.mark.parametrize("words", [["--hf"], ["bert", "--hf"]])
def test_texts_teach_a_bert_masked_words(words, tmp_path):
    folder = bert_folder(tmp_path / "bert")
    data = write(tmp_path / "data.jsonl", [{"text": f"{animal} eat {food}"} for animal, food in FOODS.items()] * 30)
    named = [] if words == ["--hf"] else ["--seq-length", 32, "--micro-batch-size", 1, "--eval-iters", 0, "--split", "1,0,0"]
    said = run("finetune", *words, folder, "--data-path", data, *named, "--num-train-epochs", 16, "--lr", "4e-3", "--global-batch-size", 10, "--micro-batch-size", 10,
               "--log-interval", 20, "--hf-out", tmp_path / "out", "--device", "cpu")
    losses = [float(loss) for loss in re.findall(r"lm loss: ([0-9.E+-]+)", said)]
    assert losses[-1] < 0.5 < 2 < losses[0] and "sop loss" not in said, losses
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    for name in ("bert.pooler.dense.weight", "cls.seq_relationship.weight", "cls.seq_relationship.bias"):
        assert torch.equal(before[name], after[name]), name
    model = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    right = 0
    for animal, food in FOODS.items():
        ids = tokenizer(f"{animal} eat [MASK]", return_tensors="pt").input_ids
        with torch.no_grad():
            right += int(model(input_ids=ids).logits[0, -2].argmax()) == tokenizer.convert_tokens_to_ids(food)
    assert right == len(FOODS)


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM"])
def test_heads_that_a_folder_lacks_begin_anew(kind, tmp_path):
    """As in transformers: published folders hold the base model, or the head of masked words alone."""
    folder = bert_folder(tmp_path / "bert", kind)
    before = load_file(folder / "model.safetensors")
    words = [{"text": f"{animal} eat {food}"} for animal, food in FOODS.items()] * 4
    labels = [{"text": f"the {animal}", "label": i % 2} for i, animal in enumerate(FOODS)] * 4
    new = {"BertModel": ("lm_head, output_layer, binary_head", ""), "BertForMaskedLM": ("pooler, binary_head", "pooler")}[kind]
    for name, lines, heads in (("words", words, new[0]), ("labels", labels, new[1])):
        said = run("finetune", "--hf", folder, "--data-path", write(tmp_path / f"{name}.jsonl", lines), "--num-train-epochs", 2, "--lr", "1e-9",
                   "--hf-out", tmp_path / name, "--device", "cpu")
        assert (f"has no weights of {heads}, which begin anew" in said) if heads else "begin anew" not in said, said
        after = load_file(tmp_path / name / "model.safetensors")
        embeddings = "bert.embeddings.word_embeddings.weight"
        assert torch.allclose(after[embeddings], before[embeddings if embeddings in before else embeddings.removeprefix("bert.")], atol=1e-6)
    assert "is missing" in run("ckpt", "convert", "--from-hf", folder, "--save", tmp_path / "converted", code=4)


def test_wrong_lines_of_a_bert(tmp_path):
    folder = bert_folder(tmp_path / "bert")
    flags = ["finetune", "--hf", folder, "--hf-out", tmp_path / "out", "--device", "cpu", "--data-path"]
    said = run(*flags, write(tmp_path / "names.jsonl", [{"text": "a", "label": name} for name in ("good", "old", "red")]), code=3)
    assert "the label 'good' is not a number (and so in 2 more places)" in said
    said = run(*flags, write(tmp_path / "chats.jsonl", [next(pairs("messages"))] * 3), code=3)
    assert 'the line has no "text" (and so in 2 more places)' in said and "label" in said


CHATML = """{%- for m in messages -%}
{{ '<|im_start|> ' ~ m.role ~ ' ' ~ m.content ~ ' <|im_end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|> assistant ' }}{%- endif -%}"""


def gpt_folder(folder, dtype):
    special = ["<|im_start|>", "<|im_end|>", "<unk>"]
    words = unigram(special, ["user", "assistant", *WORDS])
    words.add_special_tokens(special)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>", unk_token="<unk>")
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(vocab_size=len(WORDS) + 5, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      max_position_embeddings=64)
    transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    return folder


def dtypes_in(folder):
    return {weights.dtype for weights in load_file(folder / "model.safetensors").values()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_gpt_keeps_its_dtype(dtype, tmp_path):
    folder = gpt_folder(tmp_path / "in", dtype)
    data = write(tmp_path / "data.jsonl", list(pairs("messages")))
    for name, flags in {"whole": [], "merged": ["--lora-rank", 2]}.items():
        run("finetune", "--hf", folder, "--data-path", data, "--num-train-epochs", 1, "--device", "cpu", "--hf-out", tmp_path / name, *flags)
        assert dtypes_in(tmp_path / name) == {dtype}, name
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
    if dtype != torch.bfloat16:
        return
    two = subprocess.run([BINARY, "launch", "--nproc-per-node", "2", "--", "finetune", "--hf", str(folder), "--data-path", str(data), "--tp", "2",
                          "--num-train-epochs", "1", "--device", "cpu", "--hf-out", str(tmp_path / "two")], capture_output=True, text=True, timeout=200,
                         cwd=tmp_path, check=False, env=environment())
    assert two.returncode == 0, two.stdout + two.stderr
    assert dtypes_in(tmp_path / "two") == {dtype}
