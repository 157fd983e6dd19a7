"""The page's Markdown: what becomes of it, that no HTML comes with it, and that its time stays bounded."""

import html.parser
import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "teratron"
pytestmark = pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")


def rendered(*texts):
    shared = (ROOT / "telemetry" / "page" / "page.js").read_text().partition("const number")[0]
    program = f"{shared}{(ROOT / 'serve' / 'page' / 'markdown.js').read_text()}\nconsole.log(JSON.stringify({json.dumps(texts)}.map(t => markdown(t).text)));"
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def body(text):
    (page,) = rendered(text)
    assert page.startswith('<div class="md">') and page.endswith("</div>")
    return page.removeprefix('<div class="md">').removesuffix("</div>")


@pytest.mark.parametrize("text, expected", [
    ("a\nb\n\nc", "<p>a<br>b</p><p>c</p>"), ("# A *b*\n#### C", "<h3>A <em>b</em></h3><h4>C</h4>"),
    ("**a** __b__ *c* _d_ ~~e~~ ***f***", "<p><strong>a</strong> <strong>b</strong> <em>c</em> <em>d</em> <del>e</del> <strong><em>f</em></strong></p>"),
    ("snake_case_name 2 * 3 * 4 **", "<p>snake_case_name 2 * 3 * 4 **</p>"), ("\\*a\\*", "<p>*a*</p>"), ("`a *b*` ``c`d``", "<p><code>a *b*</code> <code>c`d</code></p>"),
    ("- a\n- b\n  - c\n\n3. d\n4. e", '<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li></ul><ol start="3"><li><p>d</p></li><li><p>e</p></li></ol>'),
    ("> a\n> b", "<blockquote><p>a<br>b</p></blockquote>"), ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    ("| a | b |\n|:--|--:|\n| 1 | 2 |", '<div class="wide"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>'),
    ("a | b", "<p>a | b</p>"), ("", ""), ("  \n\n", "")])
def test_elements(text, expected):
    assert body(text) == expected


def test_code_blocks():
    for text in ("```py\nif a < b:\n    pass\n```", "```py\nif a < b:\n    pass", "~~~py\nif a < b:\n    pass\n~~~"):
        page = body(text)
        assert page.count("<pre>") == 1 and "<code>if a &#60; b:\n    pass</code>" in page and "<span>py</span>" in page
    assert body("1. a\n   ```\n   x\n   ```\n2. b").count("<li>") == 2


def test_links_lead_to_the_web_alone():
    assert '<a href="https://a.b/c?d=1&#38;e" target="_blank" rel="noopener noreferrer">x</a>' in body("[x](https://a.b/c?d=1&e)")
    assert '<a href="https://a.b/c"' in body("see https://a.b/c.") and ">https://a.b/c</a>." in body("see https://a.b/c.")
    for text in ("[x](javascript:alert(1))", "[x](data:text/html,y)", "[x](//a.b)", "[x](file:///etc)", "[x](JaVaScript:alert(1))"):
        assert "<a" not in body(text)


class Tags(html.parser.HTMLParser):
    KNOWN = {"div", "p", "br", "h3", "h4", "ul", "ol", "li", "blockquote", "hr", "table", "thead", "tbody", "tr", "th", "td", "pre", "code", "span", "button", "a",
             "strong", "em", "del"}

    def handle_starttag(self, tag, attrs):
        assert tag in self.KNOWN, tag
        assert all(name in ("class", "href", "target", "rel", "start", "type", "data-act") for name, _ in attrs), attrs
        assert all(name != "href" or value.startswith(("https://", "http://", "mailto:")) for name, value in attrs)


def test_no_html_comes_through():
    pieces = ["<script>x</script>", "<img src=x onerror=x>", '"><b onclick=x>', "[x](https://y.z/\"onmouseover=\"x)", "[<i>](https://y.z)", "`<svg/onload=x>`",
              "```<b>\n<b>\n```", "| <b> | y |\n|--|--|\n| <b> | z |", "- <b>", "> <b>", "# <b>", "**<b>**", "&lt;b&gt;", "<!-- x -->", "![<b>](https://y.z/<b>)"]
    for page in rendered(*pieces, *(first + "\n" + second for first in pieces for second in pieces)):
        Tags().feed(page)


def test_long_texts_take_little_time():
    start = time.monotonic()
    rendered(*(piece * (20_000 // len(piece)) for piece in ("*a ", "**", "_a", "[", "[a](", "> ", "- ", "`", "` `` ", "|-", "# ", "1. a\n", "~~", "<", "http://", "\\", "![")))
    assert time.monotonic() - start < 20
