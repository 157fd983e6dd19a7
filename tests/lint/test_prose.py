"""The rules of tools/lint for the prose of comments."""
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import lint_prose  # noqa: E402

HEADER = "examples/x.h"
LONG = " ".join(["word"] * 36)


def findings(text, path=HEADER):
    return [(text.count("\n", 0, offset) + 1, rule) for offset, rule, _ in lint_prose.check_prose(path, text)]


@pytest.mark.parametrize("text", ["// Of each rank, the shards.", "/// Those of the tree.", "int x;  //< The same in f64.",
                                  "// Of [a, b] = [1, 2].", "// Sums. Means.\n//\n// Of a group.", "/// The same, in f64.",
                                  "// The same; in f64.", "int x;  // a sum\n/// Of a group."])
@pytest.mark.parametrize("path", [HEADER, "examples/x.cpp", "examples/x.cu", "examples/x.def"])
def test_finds_how_a_comment_begins(text, path):
    assert findings(text, path) == [(text.count("\n") + 1, "comment-start")]


@pytest.mark.parametrize("text", ["// Often used.", "// Shards\n// Of nothing.", 'f("// Of a rank");', "// Sums of those ranks.",
                                  "// - one item\n//   Of no interest"])
def test_leaves_other_beginnings_alone(text):
    assert findings(text) == []


@pytest.mark.parametrize("text,line", [
    (f"// {LONG}.", 1),
    ("int f();\n// Short one. " + LONG.replace(" ", "\n// ", 5), 2),
    (f"// List:\n// - {LONG}.", 2),
    (f"// - Short.\n//   {' '.join(['word'] * 20)}\n//   {' '.join(['word'] * 20)}", 1),
    (f"// See e.g. {LONG[5:]}.", 1),
    (f"// {LONG[:60]}, `x_y` and 3 {LONG[60:]}", 1),
])
def test_finds_long_sentences(text, line):
    assert findings(text) == [(line, "long-sentence")]


@pytest.mark.parametrize("text", [
    f"// {LONG[5:]}.",
    f"// {LONG[:100]}. cuDNN's {LONG[100:]}.",
    f"// {LONG[:100]} (see 3.)\n// Next {LONG[100:]}!",
    "// Items:\n" + "// - a word of a list\n" * 20,
    "// | a word | a cell of the table |\n" * 20,
    "// word      another column of words\n" * 20,
    "// Code:\n" + "//     result of words and words\n" * 20,
    "// y = (x * w) / s^2 + b[i] - c[j]\n" * 20,
    f"// {' '.join(['word'] * 20)}\nint x;\n// {' '.join(['word'] * 20)}",
    f"// {'x_y 1 = + a/b ' * 20}",
    f'const char* text = "// {LONG}";',
])
def test_leaves_short_sentences_lists_tables_and_code_alone(text):
    assert findings(text) == []


def test_sources_may_have_long_sentences():
    assert findings(f"// {LONG}.", "examples/x.cpp") == []
