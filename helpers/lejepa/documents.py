"""Files of documents -> passages: every format becomes Markdown, whose sections are cut by the tokens of the model.

for section in read_document(path, name):        # ValueError for a file that cannot be read
    passages += cut(section, spans, limit)       # no passage is longer than the model reads
"""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from helpers.data.files import read_text

SUFFIXES = (".md", ".markdown", ".rst", ".txt", ".html", ".htm", ".pdf", ".docx")
SPARE_TOKENS = 2  # a part of a text may have a few tokens more than the text had there
FRONT_MATTER = r"(?ms)\A\s*(---|\+\+\+)[ \t]*\n.*?^\1[ \t]*$"
TITLE = r"\A\s*(?!#)([^\n]{3,120})(?<![.:,;])\n[ \t]*\n(?!\s*#)"  # a short first line before a blank one
# Code between fences, where no line is a heading; `## a heading ##`; a line with = or - under it.
HEADING = re.compile(
    r"(?m)^[ \t]*(?P<code>```|~~~)(?s:.*?)^[ \t]*(?P=code)|^(?P<marks>#{1,6})[ \t]+(?P<text>\S.*?)[ \t#]*$"
    r"|^(?P<line>\S.*)\n(?P<under>=+|--+)[ \t]*$"
)
UNSEEN = "script, style, nav, head, template, svg, noscript"  # elements of HTML
LINES = "p, div, section, article, li, dt, dd, tr, td, th, br, hr, pre, blockquote, table"
STYLES = ("Title", *(f"Heading {level}" for level in range(1, 6)))  # of Word
SENTENCE_END, WORD_END = re.compile(r"(?s).*([.!?]\s+|[。！？])"), re.compile(r"(?s).*\s")  # the last ones

Spans = Callable[[str], list[tuple[int, int]]]


class Passage(NamedTuple):
    document: str  # name of its file, or its id
    heading: str  # title and section; "" where there is none
    body: str
    answer: str = ""  # of a past question: its answer, which a result shows

    @property
    def text(self) -> str:
        """What is embedded and searched: heading and body."""
        if not self.heading:
            return self.body
        return f"{self.heading.rstrip('.')}. {self.body}"

    @property
    def shown(self) -> str:
        """What a result shows."""
        return f"{self.body}\n{self.answer}" if self.answer else self.text


def read_document(path: Path, name: str) -> list[Passage]:
    """The sections of a file, each with the headings above it. name: of the document, with which an error begins.

    Raises ValueError for a file that cannot be read or holds no text.
    """
    try:
        sections = list(_sections(name, READERS.get(path.suffix.lower(), _markdown)(path)))
    except Exception as error:  # a damaged PDF or Word file ends in any error of Python
        raise ValueError(f"{name} cannot be read: {error}") from error
    if not sections:
        raise ValueError(f"{name} holds no text; scanned pages need OCR first")
    return sections


def _sections(name: str, text: str) -> Iterator[Passage]:
    """A heading without a text, and without headings below it, is a text."""
    outline: dict[int, str] = {}
    begin = 0
    for match in HEADING.finditer(f"{text}\n\n# end"):
        if match["code"]:
            continue
        level = len(match["marks"] or "") or 1 + "=-".index(match["under"][0])
        heading = ": ".join(outline.values())
        body = text[begin : match.start()].strip()
        if body:
            yield Passage(name, heading, body)
        elif level <= max(outline, default=0):
            yield Passage(name, "", heading)
        begin = match.end()
        outline = {depth: title for depth, title in outline.items() if depth < level}
        outline[level] = (match["text"] or match["line"]).strip()


# ---- formats, as Markdown


def _markdown(path: Path) -> str:
    text = re.sub(FRONT_MATTER, "", read_text(path))
    return re.sub(TITLE, r"# \1\n", text)


def _html(path: Path) -> str:
    from bs4 import BeautifulSoup

    page = BeautifulSoup(read_text(path), "html.parser")
    for element in page.select(UNSEEN):
        element.decompose()
    for element in page.select(LINES):
        element.insert_before("\n")
        element.append("\n")
    for element in page.select("h1, h2, h3, h4, h5, h6"):
        heading = " ".join(element.get_text().split())
        if heading:
            element.replace_with(f"\n{'#' * int(element.name[1])} {heading}\n")
    return re.sub(r"\s*\n\s*", "\n", page.get_text())


def _pdf(path: Path) -> str:
    from pypdf import PdfReader

    return "\n".join(page.extract_text() for page in PdfReader(path).pages)


def _word(path: Path) -> str:
    from docx import Document

    lines = []
    for block in Document(path).iter_inner_content():
        if hasattr(block, "rows"):
            for row in block.rows:
                lines.append(" | ".join(cell.text for cell in row.cells))
        elif block.style.name in STYLES:
            lines.append(f"{'#' * (1 + STYLES.index(block.style.name))} {block.text}")
        else:
            lines.append(block.text)
    return "\n".join(lines)


READERS = {".html": _html, ".htm": _html, ".pdf": _pdf, ".docx": _word}


# ---- passages


def cut(section: Passage, spans: Spans, limit: int) -> Iterator[Passage]:
    """The fewest parts of at most `limit` tokens and of nearly equal length, cut at the end of a sentence or word where one is near.

    spans: where each token is in a text. A heading is counted in each part; one that takes half of the tokens goes into the body.
    """
    room = limit - SPARE_TOKENS
    heading_tokens = len(spans(section.heading))
    if heading_tokens > room // 2:
        section = section._replace(heading="", body=section.text)
    else:
        room -= heading_tokens + 1
    starts = [start for start, _ in spans(section.body)]
    body, begin = section.body, 0
    while len(starts) > room:
        count = math.ceil(len(starts) / math.ceil(len(starts) / room))
        first = starts[count - count // 4]
        end = starts[count]
        last = SENTENCE_END.match(body[first:end]) or WORD_END.match(body[first:end])
        if last:
            end = first + last.end()
        yield section._replace(body=body[begin:end].strip())
        begin = end
        starts = [start for start in starts if start >= end]
    yield section._replace(body=body[begin:].strip())
