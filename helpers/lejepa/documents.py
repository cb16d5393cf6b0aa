"""Files of documents -> passages: the headings of Markdown, reStructuredText, HTML, PDF and Word, cut by the tokens of the model.

listing, documents = read_folder(place)          # what could not be read is named in the listing
for passage in cut(section, spans, limit): ...   # no passage is longer than the model reads
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import helpers
from helpers.data.text import read_text
from helpers.notebook import setup

SUFFIXES = (".md", ".markdown", ".rst", ".txt", ".html", ".htm", ".pdf", ".docx")
SPARE_TOKENS = 2  # a part of a text may have a few tokens more than the text had there
ENDS, WIDE_ENDS = ".!?", "。！？"  # of a sentence; no space follows the wide ones
FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\n.*?^\1[ \t]*$\n?", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r"\A(?!#)([^\n]{3,120})(?<![.:,;])\n[ \t]*\n")  # a short first line before a blank one

Line = tuple[int, str]  # level of a heading, 0 for a line of text
Spans = Callable[[str], list[tuple[int, int]]]


class Passage(NamedTuple):
    document: str  # name of its file, or its id
    heading: str  # title and section; "" where there is none
    body: str
    answer: str = ""  # of a past question: its answer, which a result shows

    @property
    def text(self) -> str:
        """What is embedded and searched: heading and body."""
        return f"{self.heading.rstrip('.')}. {self.body}" if self.heading else self.body

    @property
    def shown(self) -> str:
        """What a result shows."""
        return f"{self.body}\n{self.answer}" if self.answer else self.text


def read_document(path: Path, name: str) -> list[Passage]:
    """The sections of a file, each with the headings above it.

    Raises ValueError, with a message that begins with a verb, for a file that cannot be read or holds no text.
    """
    suffix = path.suffix.lower()
    try:
        lines = list(READERS[suffix](path))
    except OSError as error:
        raise ValueError(f"cannot be opened ({error.strerror or error})") from error
    sections = [section for section in _sections(name, lines) if section.body]
    if sections:
        return sections
    headings = "\n".join(text for _, text in lines).strip()
    if not headings:
        scan = "; a scanned page needs OCR first" if suffix == ".pdf" else ""
        raise ValueError(f"holds no text{scan}")
    return [Passage(name, "", headings)]


def _sections(name: str, lines: Iterable[Line]) -> Iterator[Passage]:
    outline: dict[int, str] = {}
    body: list[str] = []
    for level, text in lines:
        if not level:
            body.append(text)
            continue
        yield Passage(name, ": ".join(outline.values()), "\n".join(body).strip())
        body = []
        outline = {depth: heading for depth, heading in outline.items() if depth < level}
        outline[level] = text.strip()
    yield Passage(name, ": ".join(outline.values()), "\n".join(body).strip())


# ---- formats


def _markdown(path: Path) -> Iterator[Line]:
    text = FRONT_MATTER.sub("", read_text(path), count=1).lstrip("\n")
    title = TITLE.match(text)
    if title and not _underline_level(text[title.end() :].split("\n", 1)[0]):
        yield 1, title[1]
        text = text[title.end() :]
    fence, waiting = "", ""  # waiting: a line that an underline may make a heading
    for line in text.split("\n"):
        mark = re.match(r"\s*(```|~~~)", line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        heading = None if fence else re.match(r"(#{1,6})[ \t]+(.*?)[ \t#]*$", line)
        level = 0 if fence or not waiting.strip() else _underline_level(line)
        if level:
            yield level, waiting
            waiting = ""
            continue
        yield 0, waiting
        waiting = line
        if heading:
            yield len(heading[1]), heading[2]
            waiting = ""
    yield 0, waiting


def _underline_level(line: str) -> int:
    """1 for a line of =, 2 for one of -, else 0."""
    if re.fullmatch(r"=+\s*", line):
        return 1
    return 2 if re.fullmatch(r"--+\s*", line) else 0


def _restructured(path: Path) -> Iterator[Line]:
    """An underline as long as its line makes a heading; the first character that is met is of the first level."""
    lines = read_text(path).split("\n")
    levels: dict[str, int] = {}
    place = 0
    while place < len(lines):
        line, under = lines[place].rstrip(), lines[place + 1].rstrip() if place + 1 < len(lines) else ""
        ruled = re.fullmatch(r"([^\w\s])\1{2,}", under) and len(under) >= len(line.strip()) > 0
        if ruled and not re.fullmatch(r"([^\w\s])\1*", line):
            yield levels.setdefault(under[0], len(levels) + 1), line
            place += 2
        else:
            if not re.fullmatch(r"([^\w\s])\1{2,}", line):  # the line above a heading, or a rule
                yield 0, line
            place += 1


class _Page(HTMLParser):
    """The lines of an HTML page, without scripts, styles and navigation."""

    LEFT_OUT = frozenset(("script", "style", "nav", "head", "template", "svg", "noscript"))
    INSIDE_A_LINE = frozenset(
        [
            "a",
            "abbr",
            "b",
            "bdi",
            "cite",
            "code",
            "em",
            "font",
            "i",
            "img",
            "kbd",
            "mark",
            "q",
            "s",
            "samp",
            "small",
            "span",
            "strong",
            "sub",
            "sup",
            "u",
            "var",
        ]
    )

    def __init__(self):
        super().__init__()
        self.lines: list[Line] = []
        self.text, self.hidden = "", 0

    def end_line(self, level: int = 0) -> None:
        text = " ".join(self.text.split())
        if text:
            self.lines.append((level, text))
        self.text = ""

    def handle_starttag(self, tag, attributes):
        self.hidden += tag in self.LEFT_OUT
        if tag not in self.INSIDE_A_LINE:
            self.end_line()

    def handle_endtag(self, tag):
        if tag in self.LEFT_OUT:
            self.hidden = max(0, self.hidden - 1)
        if tag not in self.INSIDE_A_LINE:
            self.end_line(int(tag[1]) if re.fullmatch("h[1-6]", tag) else 0)

    def handle_data(self, text):
        if not self.hidden:
            self.text += text


def _html(path: Path) -> list[Line]:
    page = _Page()
    page.feed(read_text(path))
    page.close()
    page.end_line()
    return page.lines


def _pdf(path: Path) -> Iterator[Line]:
    pypdf = _library("pypdf", "pypdf")
    try:
        for page in pypdf.PdfReader(path).pages:
            yield 0, page.extract_text()
    except Exception as error:  # a damaged file ends in any error of Python
        raise ValueError(f"is no PDF that can be read ({type(error).__name__}: {error})") from error


def _word(path: Path) -> Iterator[Line]:
    docx = _library("docx", "python-docx")
    try:
        blocks = list(docx.Document(path).iter_inner_content())
    except Exception as error:  # as of a PDF
        raise ValueError(f"is no Word file that can be read ({type(error).__name__}: {error})") from error
    for block in blocks:
        if hasattr(block, "rows"):
            for row in block.rows:
                yield 0, " | ".join(cell.text for cell in row.cells)
            continue
        level = re.fullmatch(r"(?:Heading (\d)|Title)", block.style.name if block.style else "")
        yield int(level[1] or 1) if level and block.text.strip() else 0, block.text


def _library(module: str, package: str):
    """A small library that only such files need: a notebook installs it now, as its first cell does; other programs say what to do."""
    try:
        return importlib.import_module(module)
    except ImportError:
        if not getattr(helpers, "shown", None):
            raise ValueError(f"needs the package {package}: pip install {package}") from None
    try:
        setup.install(package)
    except RuntimeError:
        raise ValueError(f"needs the package {package}, which could not be installed: pip install {package}") from None
    return importlib.import_module(module)


READERS = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": _markdown,
    ".rst": _restructured,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _word,
}


# ---- passages


def cut(section: Passage, spans: Spans, limit: int) -> Iterator[Passage]:
    """The fewest parts of at most `limit` tokens and of nearly equal length, cut at the end of a sentence or word where one is near.

    spans: where each token is in a text. A heading is counted in each part; one that takes half of the tokens goes into the body.
    """
    room = limit - SPARE_TOKENS
    if section.heading:
        heading_tokens = len(spans(section.heading)) + 1
        if heading_tokens > room // 2:
            section = section._replace(heading="", body=section.text)
        else:
            room -= heading_tokens
    body, places = section.body, spans(section.body)
    begin = done = 0
    while len(places) - done > room:
        left = len(places) - done
        count = math.ceil(left / math.ceil(left / room))
        end = _break(body, places, done + count, count // 4)
        yield section._replace(body=body[begin : places[end][0]].strip())
        begin, done = places[end][0], end
    yield section._replace(body=body[begin:].strip())


def _break(body: str, places: list[tuple[int, int]], last: int, near: int) -> int:
    """The token, `last` or one of `near` tokens before it, that begins a sentence; else a word; else `last`."""
    begins_word = 0
    for number in range(last, max(1, last - near), -1):
        end_before, begin = places[number - 1][1], places[number][0]
        ending = body[end_before - 1]
        apart = begin > end_before or body[begin : begin + 1].isspace()
        if ending in WIDE_ENDS or (apart and ending in ENDS):
            return number
        if apart and not begins_word:
            begins_word = number
    return begins_word or last
