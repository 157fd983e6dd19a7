"""The page in headless Chromium: type, stream, stop, history, keyboard, phone width. Screenshots go to TERATRON_SCREENSHOTS."""

import os
import re
import shutil
from pathlib import Path

import pytest
from server import make_model, needs_binary, serving, wait_for  # noqa: F401

sync_api = pytest.importorskip("playwright.sync_api", reason="needs tests/clients/requirements.txt (./run test --long)")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [needs_binary, pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")]
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def screenshots(tmp_path):
    folder = Path(os.environ.get("TERATRON_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def until(page, condition):
    """Waits for a JavaScript expression, without eval(), which the page's policy forbids."""
    for _ in range(1000):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(30)
    raise AssertionError(f"waited in vain for {condition}")


def open_page(browser, server, viewport=DESKTOP, scheme="light"):
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    page = context.new_page()
    page.problems = []
    page.on("console", lambda message: page.problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda request: page.problems.append(request.url) if f":{server.port}/" not in request.url and
            not request.url.startswith("data:") else None)
    page.goto(f"http://{server.host}:{server.port}/")
    until(page, "document.title === 'run'")
    return page


def set_option(page, name, value):
    page.locator(f"[data-name={name}]").fill(str(value))
    page.locator(f"[data-name={name}]").dispatch_event("change")


def slow_down(page):
    """A connection on which a stream of this tiny model lasts for seconds."""
    session = page.context.new_cdp_session(page)
    session.send("Network.emulateNetworkConditions", {"offline": False, "latency": 0, "downloadThroughput": 100_000, "uploadThroughput": -1})


def wait_until_done(page):
    until(page, "document.getElementById('send').dataset.state === 'ready'")


def test_a_chat(browser, server, screenshots):
    page = open_page(browser, server)
    set_option(page, "max_tokens", 40)
    set_option(page, "seed", 3)
    page.locator("#input").fill("Who eats fish?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".turn.assistant .facts")
    wait_until_done(page)
    assert page.locator(".turn.user .text").inner_text() == "Who eats fish?"
    assert page.locator("#send").count() == 1 and page.locator("#stop").count() == 0 and page.locator("#send").inner_text() == "Send"
    assert page.evaluate("document.activeElement.id") == "input", "the keyboard stays in the input"
    expected = server.chat("Who eats fish?", max_tokens=40, seed=3).json["choices"][0]["message"]["content"]
    assert page.evaluate("document.querySelector('.turn.assistant').turn.text") == expected
    facts = page.locator(".turn.assistant .facts").inner_text()
    assert re.search(r"^\d+ tokens(, [\d.]+ tokens/s)?, first after [\d.]+ s", facts), facts
    tokens = page.locator(".turn.assistant .token")
    assert tokens.count() == 0 and page.locator(".turn.assistant .md").count() == 1 and page.locator("#legend").is_hidden()
    page.locator("[data-act=tokens]").click()
    assert tokens.count() > 5 and page.locator("#legend").is_visible()
    tokens.nth(4).hover()
    assert "".join(tokens.all_text_contents()) == expected, "every piece of the text belongs to a token"
    alternatives = page.locator("#alternatives")
    assert alternatives.is_visible() and alternatives.locator("tr").count() >= 5 and "%" in alternatives.inner_text()
    page.screenshot(path=screenshots / "chat.png")
    page.mouse.move(2, 2)
    page.locator("#talk").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.token')[1]") and alternatives.is_visible(), "the arrows walk"
    # The answer is part of the next request.
    page.locator("#input").fill("And mice?")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.turn.assistant .facts').length === 2")
    assert not page.problems, page.problems


def test_a_completion_is_stopped(browser, server, screenshots):
    page = open_page(browser, server, scheme="dark")
    slow_down(page)
    page.locator("#tab-completion").click()
    set_option(page, "max_tokens", 1900)
    page.locator("[data-name=ignore_eos]").check()
    page.locator("#input").fill("The cat")
    page.keyboard.press("Control+Enter")
    until(page, "document.querySelectorAll('.token').length > 60")
    assert "tokens/s" in page.locator("#status").inner_text() and page.locator(".token").first.is_visible()
    page.screenshot(path=screenshots / "completion_dark.png")
    assert page.locator("#send").inner_text() == "Stop", "the answer still streams"
    page.locator("#send").click()
    wait_until_done(page)
    assert "stopped" in page.locator(".turn .facts").first.inner_text()
    wait_for(server.is_idle, "an idle server")
    page.keyboard.press("Control+Enter")
    until(page, "document.querySelectorAll('.turn:nth-child(2) .token').length > 300")
    page.keyboard.press("Escape")
    wait_until_done(page)
    assert "stopped" in page.locator(".turn .facts").last.inner_text()
    page.locator("#speed summary").click()
    page.screenshot(path=screenshots / "speed_dark.png")
    assert page.locator("#speed svg.chart").is_visible() and not page.problems, page.problems


def test_options_history_and_errors(browser, server, screenshots):
    page = open_page(browser, server)
    page.locator("#tab-chat").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tab-completion").get_attribute("aria-selected") == "true"
    set_option(page, "n", 3)
    set_option(page, "max_tokens", 6)
    page.locator("#input").fill("The dog")
    page.locator("#send").click()
    wait_until_done(page)
    assert page.locator(".turn.assistant").count() == 3
    set_option(page, "top_k", 5)
    set_option(page, "temperature", 200)
    page.locator("#send").click()
    page.wait_for_selector(".turn.error")
    assert "not in [0, 100]" in page.locator(".turn.error").inner_text()
    page.screenshot(path=screenshots / "error.png")
    page.reload()
    assert page.locator("[data-name=top_k]").input_value() == "5", "options are kept"
    page.locator(".past button").first.click()
    assert page.locator(".turn.assistant").count() == 3, "and texts"
    page.locator("#defaults").click()
    assert page.locator("[data-name=top_k]").input_value() == "0"
    page.locator("[aria-label^=Delete]").first.click()
    assert page.locator(".past").count() == 0


def test_answers_are_asked_for_again(browser, server, screenshots):
    page = open_page(browser, server)
    assert page.locator(".example").count() >= 3 and page.locator("[data-name=key]").count() == 0, "no key is needed"
    page.screenshot(path=screenshots / "welcome.png")
    set_option(page, "max_tokens", 12)
    set_option(page, "seed", 3)
    page.locator(".example").first.click()
    page.wait_for_selector(".turn.assistant .facts")
    wait_until_done(page)
    question = page.locator(".turn.user .text").inner_text()
    assert len(question) > 20 and page.locator("#welcome").is_hidden()
    text = "document.querySelector('.turn.assistant:last-child').turn.text"
    first = page.evaluate(text)
    set_option(page, "seed", 4)
    page.locator("[data-act=again]").click()
    until(page, f"{text} !== {first!r}" if "'" not in first else "document.querySelectorAll('.turn.assistant .facts').length === 1")
    wait_until_done(page)
    assert page.evaluate(text) == server.chat(question, max_tokens=12, seed=4).json["choices"][0]["message"]["content"]
    page.locator("#input").fill("More")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.turn.assistant .facts').length === 2")
    wait_until_done(page)
    page.locator("[data-act=edit]").first.click()
    assert page.locator("#input").input_value() == question and page.locator("#send").inner_text() == "Send again"
    page.keyboard.press("Escape")
    assert page.locator("#input").input_value() == "" and page.locator("#send").inner_text() == "Send" and page.locator(".turn").count() == 4
    page.locator("[data-act=edit]").first.click()
    page.locator("#input").fill("Who?")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.turn').length === 2 && document.querySelectorAll('.turn.assistant .facts').length === 1")
    wait_until_done(page)
    assert page.locator(".turn.user .text").inner_text() == "Who?"
    assert page.evaluate(text) == server.chat("Who?", max_tokens=12, seed=4).json["choices"][0]["message"]["content"]
    assert not page.problems, page.problems


MARKDOWN = """# Title

Some **bold**, *italic* and `code <b>` with a [link](https://example.org/a?b=1&c="2").

```python
def f(x):
    return x < 1 and "<script>"
```

1. one
   - inner
2. two

> a quote

| name | value |
|------|------:|
| a    | **1** |
"""
HOSTILE = ["<img src=x onerror=window.hit=1>", "<script>window.hit=1</script>", "[x](javascript:window.hit=1)", "![x](http://127.0.0.1:1/x.png)",
           "[x](https://a.b/\"onmouseover=\"window.hit=1)", "```<img src=x onerror=window.hit=1>\n<script>window.hit=1</script>\n```", "`<svg onload=window.hit=1>`",
           "| a |\n|---|\n| <img src=x onerror=window.hit=1> |", "# <iframe srcdoc='<script>parent.hit=1</script>'>", "<a href='data:text/html,x'>x</a>",
           "[a](https://x.y) <style>*{display:none}</style>", "**<b onclick=window.hit=1>x</b>**", "[<img src=x onerror=window.hit=1>](https://x.y)"]


def test_markdown_is_shown_and_brings_no_html(browser, server, screenshots):
    page = open_page(browser, server)
    page.evaluate("text => { const turn = {role: 'assistant', text, tokens: [], facts: '9 tokens'}; talk.turns.push(turn); addTurn(turn); showWelcome(); }", MARKDOWN)
    turn = page.locator(".turn.assistant")
    page.screenshot(path=screenshots / "markdown.png")
    for selector, text in [("h3", "Title"), ("strong >> nth=0", "bold"), ("em", "italic"), ("p code", "code <b>"), ("pre code", 'def f(x):\n    return x < 1 and "<script>"'),
                           ("ol > li >> nth=1", "two"), ("ol ul li", "inner"), ("blockquote", "a quote"), ("td >> nth=1", "1"), (".bar span", "python")]:
        assert turn.locator(selector).inner_text().strip() == text, selector
    link = turn.locator("a")
    assert link.get_attribute("href").startswith("https://example.org/a?b=1") and link.get_attribute("rel") == "noopener noreferrer"
    for text in HOSTILE:
        page.evaluate("text => addTurn({role: 'assistant', text, tokens: [], facts: 'x'})", text)
    page.wait_for_timeout(300)
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.querySelectorAll('#talk :is(img, script, iframe, svg, style, [onclick], [onerror], [onload], [onmouseover])').length") == 0
    assert all(href.startswith(("https://", "http://")) for href in page.evaluate("[...document.querySelectorAll('#talk a')].map(a => a.href)"))
    assert not page.problems, page.problems


def test_a_phone(browser, server, screenshots):
    page = open_page(browser, server, PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "nothing is wider than the screen"
    page.screenshot(path=screenshots / "phone.png")
    page.locator("#side > summary").click()
    page.screenshot(path=screenshots / "phone_options.png", full_page=True)
    side = page.locator("aside").bounding_box()
    assert side["y"] + side["height"] <= PHONE["height"] + 1, "options scroll, and end with the screen"
    for option in page.locator("#options [data-name]").all():
        box = option.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"], "no option is cut"
    set_option(page, "max_tokens", 30)
    page.locator("#side > summary").click()
    page.locator("#input").fill("Who likes mice?")
    page.locator("#send").click()
    page.wait_for_selector(".turn.assistant .facts")
    page.locator("[data-act=tokens]").click()
    page.locator(".token").nth(3).click()
    assert page.locator("#alternatives").is_visible(), "a tap shows what hovering does"
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.screenshot(path=screenshots / "phone_chat.png")
    assert not page.problems, page.problems


def test_a_key_and_a_server_that_is_gone(browser, run, screenshots):
    with serving(run, "--api-key", "secret") as locked:
        page = browser.new_context(viewport=DESKTOP).new_page()
        page.goto(f"http://{locked.host}:{locked.port}/")
        page.wait_for_selector(".turn.error")
        assert "API key" in page.locator(".turn.error").inner_text()
        assert page.locator("[data-name=key]").is_visible(), "there is a field for it now"
        set_option(page, "key", "secret")
        until(page, "document.title === 'run'")
        assert page.locator(".turn.error").count() == 0
        locked.stop()
        page.locator("#input").fill("Hello")
        page.keyboard.press("Enter")
        page.wait_for_selector(".turn.error")
        assert "does not answer" in page.locator(".turn.error").inner_text()
        assert page.locator("#input").input_value() == "Hello", "the message is not lost"
