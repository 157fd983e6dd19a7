"""Rules of tools/lint for the prose of comments: how they begin, and how long the sentences of headers are."""
import re

MAX_SENTENCE_WORDS = 35

COMMENT = re.compile(r"(?P<code>.*?)//[/!]?<?(?P<text>.*)")
ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)]|[a-z]\))\s+")
ABBREVIATIONS = ("e.g.", "i.e.", "vs.", "cf.", "etc.", "approx.")


def comment_blocks(text):
    """Yields the comments on successive lines as lists of (offset, text without slashes); one behind code stands alone."""
    block, offset = [], 0
    for line in text.split("\n"):
        match = COMMENT.match(line)
        is_comment = match is not None and match["code"].count('"') % 2 == 0
        alone = is_comment and not match["code"].strip()
        if block and not alone:
            yield block
            block = []
        if is_comment:
            block.append((offset + match.end("code"), match["text"]))
        if is_comment and not alone:
            yield block
            block = []
        offset += len(line) + 1
    if block:
        yield block


def is_prose(line, indent):
    """Whether a line is a part of a sentence: not empty, indented code, a table's row, a drawing or a formula."""
    inner = line.strip()
    if len(line) - len(line.lstrip()) > indent or re.search(r"\S(   *|\s\|\s?)\S", inner):
        return False
    return sum(c.isalpha() or c == " " for c in inner) >= 0.7 * len(inner) > 0


def paragraphs(block):
    """Yields (offset, text) of the paragraphs of a block; every item of a list is one."""
    begin, lines, indent = None, [], 2
    for offset, line in block:
        item = ITEM.match(line)
        starts = item is not None and is_prose(line[item.end():], 0)
        prose = starts or is_prose(line, indent)
        if lines and (starts or not prose):
            yield begin, " ".join(lines)
            lines, indent = [], 2
        if prose:
            begin = begin if lines else offset
            indent = item.end() if starts else indent
            lines.append((line[item.end():] if starts else line).strip())
    if lines:
        yield begin, " ".join(lines)


def sentences(paragraph):
    """The sentences of a paragraph; those that begin with a name in small letters count as well."""
    found, begin = [], 0
    for match in re.finditer(r"[.!?][\")\]`]*\s+", paragraph):
        last = paragraph[begin:match.end()].split()[-1].lstrip("(")
        if last not in ABBREVIATIONS and not re.fullmatch(r"[A-Z]\.", last):
            found.append(paragraph[begin:match.end()].strip())
            begin = match.end()
    return found + [paragraph[begin:]]


def word_count(sentence):
    """The words of a sentence; numbers, operators, symbols of one letter, paths and names with underscores are none."""
    return sum(re.fullmatch(r"[A-Za-z]{2,}(['-][A-Za-z]+)*", word.strip("\"'`()[]{}.,;:!?")) is not None
               for word in sentence.split())


def check_prose(path, text):
    """Yields (offset, rule, message) of the comments of a C++ or CUDA file."""
    for block in comment_blocks(text):
        found = list(paragraphs(block))
        for offset, beginning in dict([*found, (block[0][0], block[0][1].strip())]).items():
            start = re.match(r"(Of|Those|The same)[ ,;:]", beginning)
            if start:
                yield offset, "comment-start", f'a comment begins with "{start.group(1)}"; begin with its subject'
        for offset, paragraph in found if path.endswith((".h", ".cuh")) else ():
            for sentence in sentences(paragraph):
                if word_count(sentence) > MAX_SENTENCE_WORDS:
                    yield offset, "long-sentence", (f"{word_count(sentence)} words (at most {MAX_SENTENCE_WORDS}) in the "
                                                    f"sentence: {' '.join(sentence.split()[:6])} ...")
