"""The paths and names in tables of the documents exist."""
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = re.compile(r"`([\w./-]+/[\w./-]*)`")


def rows(document):
    text = (ROOT / "docs" / document).read_text()
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| concept")]


def existing(path):
    return next((p for p in (ROOT / "teratron" / path, ROOT / path) if p.exists()), None)


@pytest.mark.parametrize("document", ["where-is.md", "coming-from-megatron.md"])
def test_paths_exist(document):
    missing = [path for row in rows(document) for path in PATH.findall(row.split("|")[-2]) if not existing(path)]
    assert len(rows(document)) > 40
    assert not missing


def test_names_are_declared_in_their_files():
    missing = []
    for row in rows("coming-from-megatron.md"):
        _, theirs, ours, files, _ = row.split("|")
        code = ""
        for path in PATH.findall(files):
            place = existing(path)
            code += "".join(p.read_text() for p in place.rglob("*.h")) if place.is_dir() else place.read_text()
        names = set(re.findall(r"\b(?:[A-Z]\w+|\w+(?=\(\)))", " ".join(re.findall(r"`([^`]+)`", ours))))
        missing += [f"{theirs.strip()}: {name}" for name in names if not re.search(rf"\b{name}\b", code)]
    assert not missing


def version_of(text):
    return tuple(int(part) for part in text.split("."))


def test_every_release_has_its_section_of_the_changelog():
    sections = re.findall(r"^## (\d+\.\d+\.\d+)\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    tags = subprocess.run(["git", "tag", "--list", "v*"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert not {tag.removeprefix("v") for tag in tags} - set(sections)
    assert sections == sorted(sections, key=version_of, reverse=True)
    header = (ROOT / "teratron/version.h").read_text()
    current = ".".join(re.findall(r"#define TERATRON_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    assert re.fullmatch(r"\d+\.\d+\.\d+", current)
    assert all(version_of(section) <= version_of(current) for section in sections), "version.h names the release"
