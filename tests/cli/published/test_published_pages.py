"""Each command of the pages, in small, and the table of docs/published-pages.md: with TERATRON_WRITE_PAGES=1 the table is
written from what was seen, else it must say that."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from pages import CHECKPOINT, CONFIG, LINES, SIZES
from program import BINARY, environment, free_port, needs_binary
from test_published_commands import COMMANDS, files, hub, run  # noqa: F401
from test_published_commands import CONFIG as CONFIG_OF_THE_PAGE

pytestmark = needs_binary
ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs/published-pages.md"
BEGIN, END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"
HEAD = "| page | command | what to type | exit code | what was seen |\n|---|---|---|---|---|\n"


def shown(text):
    return f"`{text.replace('|', chr(92) + '|')}`"


def shortened(text, most=90):
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " ..."


def row(line, code, seen):
    note = f" ({line.note})" if line.note else ""
    return f"| {line.page} | {shown(shortened(line.published))} | {shown(line.command())}{note} | {code} | {seen} |\n"


def rows_of_scripts():
    """Of tests/fixtures/cli/commands.jsonl, which test_published_commands.py runs."""
    rows = []
    for command in COMMANDS:
        theirs = f"{command['program']} {' '.join(command['args'][:4])} ..."
        rows.append(f"| Megatron-LM, {command['from'][0]} | {shown(theirs)} | {shown('teratron ' + theirs)} | 0 | 2 steps, checkpoint 2 |\n")
    return rows


@pytest.fixture(scope="module")
def written():
    rows = {}
    yield rows
    if os.environ.get("TERATRON_WRITE_PAGES") and len(rows) == len(LINES):
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        table = HEAD + "".join(rows[i] for i in sorted(rows)) + "".join(rows_of_scripts())
        DOCUMENT.write_text(before + BEGIN + table + END + rest.partition(END)[2])


def place_inputs(line, folder, sources):
    """What the line reads: the corpus and vocabularies, with "data" the datasets too."""
    for path in sources["files"].iterdir():
        is_dataset = path.name.startswith("my-") and path.suffix in (".bin", ".idx")
        if not is_dataset or "data" in line.needs:
            (folder / path.name).symlink_to(path)
    if "hub" in line.needs:
        (folder / "wikitext").symlink_to(sources["hub"] / "wikitext")
    if "config" in line.needs:
        (folder / CONFIG).write_text(CONFIG_OF_THE_PAGE)
    if "requests" in line.needs:
        requests = [{"prompt": "The cat", "top_p": 0.8}, {"prompt": "The cat", "num_beams": 20, "length_penalty": 1.5}]
        (folder / "requests.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests))
    if "trfs" in line.needs:
        run("ckpt", "convert", "--load", sources[CHECKPOINT], "--to-hf", "gpt/trfs_checkpoint", cwd=folder)


def words_of(line, sources):
    """The variables and words of the command, as they are tried."""
    variables, words = {}, shlex.split(line.command())
    while "=" in words[0]:
        name, value = words.pop(0).split("=", 1)
        variables[name] = value
    given = {CHECKPOINT: str(sources.get(CHECKPOINT, "")), "PORT": str(free_port())}
    places = {**{"DIR": CHECKPOINT, "6000": "PORT"}, **line.paths}
    words = [given.get(places.get(word, word), places.get(word, word)) for word in words]
    words[0] = BINARY if words[0] == "teratron" else str(ROOT / words[0])
    return {**variables, "MASTER_PORT": given["PORT"]}, [*words, *line.small]


@pytest.fixture(scope="module")
def sources(files, hub, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("trained") / "gpt"
    run("pretrain_gpt.py", *SIZES, "--max-position-embeddings", "128", "--lr", "1e-3", "--data-path", "my-gpt2_text_document",
        "--vocab-file", "gpt2-vocab.json", "--merge-file", "gpt2-merges.txt", "--save", folder, cwd=files)
    return {"files": files, "hub": hub, CHECKPOINT: folder}


def kept_text(output, folder):
    """Without the listing of the arguments, which is the same in all and grows with every flag."""
    lines, listed = [], False
    for each in output.replace(f"{folder}/", "").splitlines():
        listed = listed and "end of arguments" not in each or " arguments ---" in each and "end of" not in each
        if not listed and "end of arguments" not in each:
            lines.append(each.rstrip())
    return "\n".join(lines) + "\n"


def outline(text):
    """Its lines without their numbers, in any order: ranks print beside each other."""
    return sorted(re.sub(r"\d[\d.,:eE+-]*", "#", each) for each in text.splitlines() if each.strip())


def check_kept(line, done, folder):
    path, text = ROOT / "examples/output" / line.kept, kept_text(done.stdout, folder)
    if os.environ.get("TERATRON_WRITE_PAGES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert outline(path.read_text()) == outline(text)


@pytest.mark.parametrize("number", range(len(LINES)))
def test_the_line(number, sources, written, tmp_path):
    line = LINES[number]
    if line.is_long and not os.environ.get("TERATRON_LONG_TESTS") and not os.environ.get("TERATRON_WRITE_PAGES"):
        pytest.skip("TERATRON_LONG_TESTS is not set")
    place_inputs(line, tmp_path, sources)
    variables, words = words_of(line, sources)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120, input=line.stdin,
                          env={**environment(), **variables, "TERATRON": BINARY, "HF_HUB_CACHE": str(sources["hub"] / "cache")})
    assert done.returncode == line.code, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    if line.kept:
        check_kept(line, done, tmp_path)
    written[number] = row(line, done.returncode, line.seen(done, tmp_path))
    if not os.environ.get("TERATRON_WRITE_PAGES"):
        assert written[number] in DOCUMENT.read_text(), "run this test with TERATRON_WRITE_PAGES=1"


def test_the_table_is_of_these_lines():
    if os.environ.get("TERATRON_WRITE_PAGES"):
        pytest.skip("the table is written")
    table = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]
    assert table.startswith(HEAD) and table.count("\n") == 2 + len(LINES) + len(COMMANDS)
    assert table.endswith("".join(rows_of_scripts()))


def test_the_wizard_writes_the_file_of_the_page(tmp_path):
    line = next(line for line in LINES if line.stdin)
    subprocess.run([BINARY, *shlex.split(line.command())[1:]], cwd=tmp_path, input=line.stdin, text=True, check=True, capture_output=True,
                   env=environment())
    assert (tmp_path / CONFIG).read_text() == CONFIG_OF_THE_PAGE


def test_a_bare_clone(files, tmp_path):  # noqa: F811
    """Scripts of a clone with its build alone, found with nothing but the system's PATH."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    place = tmp_path / "build/release/teratron/cli/teratron"
    place.parent.mkdir(parents=True)
    place.symlink_to(Path(BINARY).resolve())
    lines = [line for line in LINES if "script" in line.needs and "pretrain_bert.sh" in line.published or "gpt2_tp_2_pp_2" in line.typed]
    assert len(lines) == 2
    for line in lines:
        folder = tmp_path / f"run-{line.page}"
        folder.mkdir()
        sources = {"files": files}
        place_inputs(line, folder, sources)
        variables, words = words_of(line, sources)
        words[0] = str(tmp_path / Path(words[0]).relative_to(ROOT))
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                              env={"PATH": "/usr/bin:/bin", "OMP_WAIT_POLICY": "PASSIVE", **variables})
        assert done.returncode == 0, done.stdout + done.stderr
        assert line.seen(done, folder) == "2 steps, checkpoint 2"
        assert outline((ROOT / "examples/output" / line.kept).read_text()) == outline(kept_text(done.stdout, folder))
