"""Chat templates against transformers, which renders a Jinja text of each."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from chat_templates.constructs import CONSTRUCTS
from chat_templates.conversations import examples
from transformers.utils.chat_template_utils import render_jinja_template

BINARY = os.environ.get("TERATRON_BINARY")
pytestmark = pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program")

TURNS = ("{%- if m.role != ['user', 'assistant'][loop.index0 % 2] -%}{{ raise_exception('user and assistant take turns') }}{%- endif -%}\n")
# name: (BOS, EOS, the template)
TEMPLATES = {
    "chatml": ("", "", r"""
{%- for m in messages -%}
{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"""),
    "llama2": ("<s>", "</s>", r"""
{%- set system = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' if messages[0].role == 'system' else '' -%}
{%- for m in (messages[1:] if system else messages) -%}
""" + TURNS + r"""
{%- if m.role == 'user' -%}{{ bos_token ~ '[INST] ' ~ ((system if loop.first else '') ~ m.content).strip() ~ ' [/INST]' }}
{%- else -%}{{ ' ' ~ m.content.strip() ~ ' ' ~ eos_token }}{%- endif -%}
{%- endfor -%}"""),
    "llama3": ("<|begin_of_text|>", "<|end_of_text|>", r"""
{{- bos_token -}}
{%- for m in messages -%}
{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ m.content.strip() ~ '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}"""),
    "mistral": ("<s>", "</s>", r"""
{{- bos_token -}}
{%- set system = messages[0].content ~ '\n\n' if messages[0].role == 'system' else '' -%}
{%- for m in (messages[1:] if messages[0].role == 'system' else messages) -%}
""" + TURNS + r"""
{%- if m.role == 'user' -%}{{ '[INST] ' ~ (system if loop.first else '') ~ m.content ~ ' [/INST]' }}{%- else -%}{{ m.content ~ eos_token }}{%- endif -%}
{%- endfor -%}"""),
    "gemma": ("<bos>", "<eos>", r"""
{{- bos_token -}}
{%- for m in messages -%}
""" + TURNS + r"""
{{ '<start_of_turn>' ~ {'user': 'user', 'assistant': 'model'}[m.role] ~ '\n' ~ m.content.strip() ~ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""),
    "zephyr": ("<s>", "</s>", r"""
{%- for m in messages -%}
{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ eos_token ~ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}"""),
}
CONVERSATIONS = [[("user", "Hello ")], [("user", "a"), ("assistant", " b\n"), ("user", "\n c")], [("system", " Be brief. "), ("user", "a")],
                 [("system", "s"), ("user", "a"), ("assistant", ""), ("user", "é\u4f60 \"x\" <b>")], [("user", ""), ("assistant", "b")],
                 [("user", "a"), ("user", "b")], [("assistant", "a")], [("system", "alone")]]
FREE_TURNS = ("chatml", "llama3", "zephyr")  # these do not check them


def messages(conversation):
    return [{"role": role, "content": content} for role, content in conversation]


def ours(*flags, lines, code=0):
    done = subprocess.run([BINARY, "tokenizer", "chat", "--jsonl", *map(str, flags)], input="".join(json.dumps(line) + "\n" for line in lines),
                          capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n") if line] if code == 0 else done.stderr


def rendered(jinja, values):
    """What transformers makes of the values, or None where it fails."""
    more = {name: value for name, value in values.items() if name not in ("messages", "tools", "add_generation_prompt")}
    try:
        return render_jinja_template([values["messages"]], tools=values.get("tools"), chat_template=jinja, bos_token="<s>", eos_token="</s>",
                                     add_generation_prompt=values.get("add_generation_prompt", False), **more)[0][0]
    except Exception:
        return None


def folder_of(tmp_path, jinja):
    (tmp_path / "chat_template.jinja").write_bytes(jinja.encode())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    return tmp_path


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_equal_those_of_transformers(name, asks):
    bos, eos, jinja = TEMPLATES[name]
    flags = ["--chat-template", name] + ["--add-generation-prompt"] * asks
    valid, texts, refused = [], [], []
    for conversation in map(messages, CONVERSATIONS):
        roles = [message["role"] for message in conversation]
        try:
            (expected,), _ = render_jinja_template([conversation], chat_template=jinja, add_generation_prompt=asks, bos_token=bos, eos_token=eos)
        except Exception:
            expected = None
        if expected is None or (name not in FREE_TURNS and roles == ["system"]):
            refused.append(conversation)
        else:
            valid.append(conversation)
            texts.append(expected)
    assert ours(*flags, lines=valid) == texts and len(valid) >= 3
    for conversation in refused[:1]:
        assert "messages[" in ours(*flags, lines=[conversation], code=3), conversation


@pytest.mark.parametrize("where", ["tokenizer_config.json", "list", "chat_template.jinja"])
def test_a_tokenizers_template_is_found(tmp_path, where):
    name, (bos, eos, jinja) = "llama2", TEMPLATES["llama2"]
    config = {"bos_token": bos, "eos_token": {"content": eos}}
    if where == "chat_template.jinja":
        (tmp_path / where).write_text(jinja)
    else:
        config["chat_template"] = jinja if where != "list" else [{"name": "tool_use", "template": "{{ x }}"}, {"name": "default", "template": jinja}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    lines = [messages(CONVERSATIONS[0])]
    assert ours("--tokenizer-model", tmp_path, lines=lines) == ours("--chat-template", name, lines=lines)


def test_a_template_is_a_name_a_file_or_a_text(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}!")
    lines = [messages([("user", "Hello")])]
    assert ours("--chat-template", tmp_path / "own.jinja", lines=lines) == ["Hello!"] == ours("--chat-template", "{{ messages[0].content }}!", lines=lines)
    error = ours("--chat-template", "alpaca", lines=[], code=2)
    assert "'alpaca' is not a known chat template" in error and all(name in error for name in TEMPLATES)
    assert "no chat template" in ours(lines=[], code=2)
    assert "not a list of messages" in ours("--chat-template", "chatml", lines=[{"role": "user"}], code=3)


FAMILIES = sorted((Path(__file__).parent / "chat_templates").glob("*.jinja"))
# A folder of further templates, such as those that the packages of trl and axolotl hold.
FAMILIES += sorted(Path(os.environ["TERATRON_CHAT_TEMPLATES"]).rglob("*.jinja")) if "TERATRON_CHAT_TEMPLATES" in os.environ else []


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
def test_published_constructs_equal_transformers(tmp_path, path):
    jinja = path.read_bytes().decode()
    valid, expected, refused = [], [], []
    for values in examples(path.name, 400):
        text = rendered(jinja, values)
        if text is None:
            refused.append(values)
        else:
            valid.append(values)
            expected.append(text)
    assert len(valid) >= 200
    folder = folder_of(tmp_path, jinja)
    assert ours("--tokenizer-model", folder, lines=valid) == expected
    for values in refused[:1]:
        ours("--tokenizer-model", folder, lines=[values], code=3)


def test_constructs_equal_jinja(tmp_path):
    """Expressions, filters, tests, methods and statements one by one, as one template for each of three conversations."""
    conversations = [messages([("user", "hi"), ("assistant", "yo")]), messages([("system", "é")]), []]
    joined = "\n|\n".join(CONSTRUCTS)
    lines = [{"messages": each} for each in conversations]
    single = [each for each in CONSTRUCTS if "messages" not in each]
    expected = [rendered("\n|\n".join(single), line) for line in lines[1:]]
    assert ours("--tokenizer-model", folder_of(tmp_path, joined), lines=lines[:1]) == [rendered(joined, lines[0])]
    assert ours("--tokenizer-model", folder_of(tmp_path, "\n|\n".join(single)), lines=lines[1:]) == expected


def chat(*flags, text):
    return subprocess.run(["bash", "-c", 'ulimit -v 4000000; exec "$@"', "bash", BINARY, "tokenizer", "chat", *map(str, flags)], input=text, capture_output=True,
                          encoding="utf-8", timeout=60)


def test_the_text_of_one_conversation_is_printed(tmp_path):
    folder = folder_of(tmp_path, "{{ bos_token }}{{ messages[0].content }}{{ tools | tojson }}{{ mode }}\n\n")
    (tmp_path / "tools.json").write_text('[{"z": 1, "a": "é"}]')
    asked = json.dumps(messages([("user", "a\nb")]), indent=1)
    done = chat("--tokenizer-model", folder, "--tools", tmp_path / "tools.json", "--chat-template-kwargs", '{"mode": "x"}', text=asked)
    assert (done.returncode, done.stdout) == (0, '<s>a\nb[{"z": 1, "a": "é"}]x\n\n'), done.stderr
    done = chat("--chat-template", "{{ raise_exception('no such thing') }}", text=asked)
    assert done.returncode in (2, 3) and "no such thing" in done.stderr and done.stdout == ""


HOSTILE = {  # others are in teratron/tokenizer/jinja/jinja_template_test.cpp
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "lists": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "blocks": "{% if 1 %}" * 50000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end(tmp_path, name):
    (tmp_path / "hostile.jinja").write_text(HOSTILE[name])
    begin = time.monotonic()
    done = chat("--chat-template", tmp_path / "hostile.jinja", text="[]")
    assert done.returncode in (2, 3) and "hostile.jinja:1" in done.stderr, done.stderr[:1000]
    assert time.monotonic() - begin < 15
