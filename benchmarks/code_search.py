"""Code search in packages that no encoder has seen: a docstring's first sentence finds the function that it was taken out of.

    pip install nltk        # stems words; beside requirements-gpu.txt
    python benchmarks/code_search.py

In each package below 150 functions and methods outside of tests are drawn, whose docstring's first sentence has at least four words
and is no other's. The sentence is the question and the 150 functions are the candidates, without their docstrings. Packages, numbers,
features and steps were fixed before any score was seen. Java has Javadoc in place of docstrings; no project of PyPI with Java sources that
was found has 100 such methods, so that 50 are enough there.

`BM25` is a conditional logit of two of them, over source and over qualified name; identifiers are split into words, and words are
stemmed. The encoder's row is the logit of two cosines: of its entity embeddings, and of its mean states less those of the package's
functions. `tuned` encoders have learned further, from docstrings of the standard library, by in-batch contrast of sentence and source. The rows of an
encoder before its training are of the first seed alone.
`MiniLM` is all-MiniLM-L6-v2, which has seen 22 million pairs of questions and answers or the like; a row that its package must be
fetched for. `--code-encoder` is one of the Hugging Face hub that was pretrained on code; where the hub cannot be reached, the results say
that it was skipped.

`rows` are means over the Python packages, with each logit fitted on the other Python packages. `rows_java` are means over the Java
packages, with logits fitted on all packages but the one that is asked; the encoders were trained on Python alone. `rows_all` are means over
the packages of both. Figures are means over the seeds, too; intervals are of 95 %, from bootstrap samples of the functions' modules
within each package and of the seeds, paired with `BM25` and with all lexical rows.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.graph_encoders import FOLDER, STEPS, Encoders
from benchmarks.held_out_packages import ENCODER, JAVA_PACKAGES, PACKAGES, Environment
from benchmarks.held_out_rows import Rankings
from benchmarks.javadoc import JAVADOC, split_javadoc, with_javadoc
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import DEFINED, KnowledgeGraph
from helpers.graphmer.searching import WORD, bm25
from helpers.graphmer.text.documents import Documents, shown_name

# N functions of a package

ROOT = Path(__file__).resolve().parents[1]
SEARCHED = ("tornado", "mpmath", "docutils", "jinja2", "werkzeug", "sqlglot", "lark")
FEWEST, FEWEST_JAVA, MOST, WORDS = 100, 50, 150, 4  # functions of a package; words of a sentence
SENTENCE, CODE = 32, 96  # tokens that encoders read
TUNING = {"steps": 80, "batch": 48, "code_tokens": 64, "learning_rate": 1e-3, "temperature": 0.05, "functions": 4000}
BM25, LEXICAL = "BM25", "BM25 and TF-IDF"
OF_BM25 = ("BM25 over source", "BM25 over names")
CODE_ENCODER = "microsoft/unixcoder-base@5604afdc964f6c53782a6813140ade5216b99006"
CODE_MODE = "<encoder-only>"  # what UniXcoder reads first where its states stand for a text (its README)


# ---- what is asked


@dataclass(frozen=True)
class Function:
    """A function to be found: `sentence` is the first of its docstring, `code` its text without the docstring."""

    entity: str
    sentence: str
    code: str


def documented_functions(
    graph: KnowledgeGraph,
    text: Callable[[str], str],
    entities: Iterable[str],
    *,
    functions: int = 1000,
    words: int = 3,
    seed: int = 0,
) -> list[Function]:
    """Functions and methods among `entities` whose docstring or Javadoc asks for them and for no other; sorted.

    text: entity id -> its source, its name on a line before it; of Java, with the Javadoc.
    functions: at most so many, drawn with `seed`.
    words: a sentence has at least so many. One that several functions share is no query, nor are they to be found.
    """
    found = []
    for name in sorted(set(entities)):
        entity = graph.entities[name]
        one_line = entity.end_line <= entity.line
        if entity.status != DEFINED or (one_line and entity.type != "method"):
            continue
        header = f"{shown_name(name)}\n"
        source = text(name).removeprefix(header)
        split = None if one_line else split_docstring(source)
        if source.startswith(JAVADOC):  # also of one line, such as a declaration of an interface
            split = split_javadoc(source)
        if split and len(split[0].split()) >= words:
            found.append(Function(name, split[0], header + split[1]))
    shared = Counter(function.sentence.casefold() for function in found)
    found = [function for function in found if shared[function.sentence.casefold()] == 1]
    return sorted(random.Random(seed).sample(found, min(functions, len(found))), key=lambda function: function.entity)


def split_docstring(source: str) -> tuple[str, str] | None:
    """First sentence of a Python function's docstring, and the source without the docstring; None if it has none."""
    source = textwrap.dedent(source)
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):  # not Python
        return None
    function = body[0] if len(body) == 1 else None  # a module has more
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    text = (ast.get_docstring(function) or "").strip()
    if not text:
        return None
    node, lines = function.body[0], source.encode().splitlines(keepends=True)  # columns of a tree are bytes
    before = lines[node.lineno - 1][: node.col_offset]
    rest = before + lines[node.end_lineno - 1][node.end_col_offset :].lstrip(b"; \t")
    code = b"".join((*lines[: node.lineno - 1], rest if rest.strip() else b"", *lines[node.end_lineno :])).decode()
    paragraph = " ".join(re.split(r"\n\s*\n", text, maxsplit=1)[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0], code


@dataclass
class Package:
    name: str
    functions: list[Function]
    modules: list[str]  # of each
    java: bool = False


def read(name: str, environment: Environment) -> Package:
    """The functions to be found; their code begins with their qualified name."""
    java = name in JAVA_PACKAGES
    folder = environment.java(name) if java else environment.package(name)
    graph = load_graph(folder)
    wanted = [
        entity.id
        for entity in graph.entities.values()
        if entity.type in ("function", "method")
        and not re.search(r"\b(tests?|conftest|testsuite|test_\w+)\b", entity.module)
    ]
    documents = Documents.read(graph, folder)
    text = with_javadoc(documents) if java else documents.text
    functions = documented_functions(graph, text, wanted, functions=MOST, words=WORDS, seed=0)
    return Package(name, functions, [graph.entities[one.entity].module for one in functions], java)


# ---- lexical


@cache
def _stemmer():
    try:
        from nltk.stem.snowball import SnowballStemmer
    except ImportError as error:
        raise ImportError(f"code search stems its words ({error}): pip install nltk") from error
    return SnowballStemmer("english")


@cache
def _stem(word: str) -> str:
    return _stemmer().stem(word)


def words(text: str) -> list[str]:
    """Words of identifiers and of prose, in lower case, stemmed."""
    return [_stem(word.lower()) for word in WORD.findall(text)]


def tf_idf(queries: list[str], texts: list[str]) -> np.ndarray:
    """[queries, texts] of cosines."""
    made = TfidfVectorizer(analyzer=words, sublinear_tf=True)
    text_NV = made.fit_transform(texts)
    return (made.transform(queries) @ text_NV.T).toarray()


def lexical(package: Package) -> dict[str, np.ndarray]:
    sentences, codes = ([getattr(each, name) for each in package.functions] for name in ("sentence", "code"))
    names = [shown_name(each.entity) for each in package.functions]
    return {
        OF_BM25[0]: bm25(sentences, codes, words),
        OF_BM25[1]: bm25(sentences, names, words),
        "TF-IDF": tf_idf(sentences, codes),
    }


# ---- encoders


def tokens(tokenizer, texts: list[str], most: int) -> torch.Tensor:
    options = {"truncation": True, "padding": True, "add_special_tokens": False, "return_tensors": "pt"}
    return tokenizer(texts, max_length=most, **options)["input_ids"]


@torch.no_grad()
def embeddings(model, tokenizer, texts: list[str], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Entity embeddings, and mean states less their mean; rows of length 1."""
    states = [
        model.encoder.encode_text(tokens(tokenizer, texts[first : first + 32], most))
        for first in range(0, len(texts), 32)
    ]
    state_ND = torch.cat(states)
    centred_ND = state_ND - state_ND.mean(0)
    unit = torch.nn.functional.normalize
    return unit(model.entity_head(state_ND), dim=-1).numpy(), unit(centred_ND, dim=-1).numpy()


def of_encoder(model, tokenizer, package: Package) -> dict[str, np.ndarray]:
    sentences, codes = (
        embeddings(model, tokenizer, [getattr(each, name) for each in package.functions], most)
        for name, most in (("sentence", SENTENCE), ("code", CODE))
    )
    return {
        f"cosine of {name}": one @ other.T
        for name, one, other in zip(("entity embeddings", "mean states"), sentences, codes, strict=True)
    }


def tuned(model, tokenizer, functions: list[Function], seed: int, steps: int = TUNING["steps"]):
    """The model after it has learned which source is a sentence's among those of the batch, both ways."""
    draw, model = torch.Generator().manual_seed(seed), model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=TUNING["learning_rate"])
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = TUNING["learning_rate"] * (1 - step / steps)
        batch = [functions[place] for place in torch.randperm(len(functions), generator=draw)[: TUNING["batch"]]]
        sentences, codes = (
            model.entities(tokens(tokenizer, [getattr(each, name) for each in batch], most))
            for name, most in (("sentence", SENTENCE), ("code", TUNING["code_tokens"]))
        )
        scores_BB, answer_B = sentences @ codes.T / TUNING["temperature"], torch.arange(len(batch))
        cross_entropy = torch.nn.functional.cross_entropy
        loss = cross_entropy(scores_BB, answer_B) + cross_entropy(scores_BB.T, answer_B)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def of_minilm(folder: Path, packages: list[Package]) -> list[np.ndarray]:
    """Cosines of a pretrained encoder of sentences."""
    from sentence_transformers import SentenceTransformer

    model, found = SentenceTransformer(str(folder), device="cpu"), []
    for package in packages:
        both = []
        for name, most in (("sentence", SENTENCE), ("code", CODE)):
            model.max_seq_length = most
            texts = [getattr(each, name) for each in package.functions]
            both.append(model.encode(texts, normalize_embeddings=True, show_progress_bar=False))
        found.append(both[0] @ both[1].T)
    return found


@torch.no_grad()
def of_code_encoder(folder: str | Path, packages: list[Package]) -> list[np.ndarray]:
    """Cosines of the mean states of a pretrained encoder of code."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).float().eval()
    vocabulary = tokenizer.get_vocab()
    before = [tokenizer.cls_token_id]
    before += [vocabulary[CODE_MODE], tokenizer.sep_token_id] if CODE_MODE in vocabulary else []

    def embedded(text: str, most: int) -> torch.Tensor:
        inside = tokenizer(text, add_special_tokens=False, truncation=True, max_length=most)["input_ids"]
        ids = torch.tensor([[*before, *inside, tokenizer.sep_token_id]])
        return torch.nn.functional.normalize(model(input_ids=ids).last_hidden_state[0].mean(0), dim=0)

    found = []
    for package in packages:
        sentences, codes = (
            torch.stack([embedded(getattr(each, name), most) for each in package.functions])
            for name, most in (("sentence", SENTENCE), ("code", CODE))
        )
        found.append((sentences @ codes.T).numpy())
    return found


def fetched(name: str, revision: str) -> tuple[Path | None, str]:
    """The folder of a repository of the hub, and why there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.txt", "*.safetensors", "pytorch_model.bin"]
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns)), ""
    except LocalEntryNotFoundError:
        return None, "the hub was not reached, and its files were not in the cache"


# ---- rows


class Questions:
    """Questions of the Python packages, then those of the Java packages.

    Weights of the first are fitted on the other Python packages, so that Java changes nothing about them; those of the second on
    all packages but their own.
    """

    def __init__(self, packages: list[Package]):
        self.packages = sorted(packages, key=lambda one: one.java)  # the order is kept otherwise
        python, java = ([one for one in self.packages if one.java == wanted] for wanted in (False, True))
        self._python, self._all = self._rankings(python), self._rankings(self.packages)
        self._N = len(self._python)
        self._parts = {"rows": (self._python, slice(None, self._N))}  # of the results: which questions
        if java:
            self._parts["rows_java"] = (self._rankings(java), slice(self._N, None))
            self._parts["rows_all"] = (self._all, slice(None))
        self._drawn = {name: rankings.resamples() for name, (rankings, _) in self._parts.items()}

    @staticmethod
    def _rankings(packages: list[Package]) -> Rankings:
        return Rankings(
            [one.name for one in packages for _ in one.functions],
            [module for one in packages for module in one.modules],
            [place == np.arange(len(one.functions)) for one in packages for place in range(len(one.functions))],
        )

    def add(self, scores: list[dict[str, np.ndarray]]) -> list[str]:
        """Features, of each package a matrix."""
        for name in scores[0]:
            rows = [row for each in scores for row in each[name]]
            self._all.add(name, rows)
            self._python.add(name, rows[: self._N])
        return [*scores[0]]

    def feature(self, name: str) -> np.ndarray:
        """Ranks by one feature as it is."""
        return self._all.ranks(self._all[name])

    def chance(self) -> np.ndarray:
        return self._all.ranks(np.zeros(sum(len(one.functions) ** 2 for one in self.packages)))

    def logit(self, features: Sequence[str]) -> np.ndarray:
        """Ranks by a logit of features."""
        ranks_N = self._python.ranks(self._python.left_out(features))
        if len(self._all) == self._N:
            return ranks_N
        return np.concatenate([ranks_N, self._all.ranks(self._all.left_out(features))[self._N :]])

    def tables(self, ranks: dict[str, list[np.ndarray]], bases: dict[str, np.ndarray]) -> dict[str, dict]:
        """For the results: rows of the Python packages, of the Java packages, and of both."""
        return {
            part: {
                name: rankings.row(
                    [each[here] for each in of_seeds],
                    {base: each[here] for base, each in bases.items()},
                    self._drawn[part],
                )
                for name, of_seeds in ranks.items()
            }
            for part, (rankings, here) in self._parts.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", nargs="*", default=[*SEARCHED], choices=PACKAGES)
    parser.add_argument("--java-packages", nargs="*", default=[*JAVA_PACKAGES], choices=JAVA_PACKAGES)
    parser.add_argument("--code-encoder", default=CODE_ENCODER, metavar="ID@REVISION", help="of the Hugging Face hub")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--folder", type=Path, default=Path("outputs/held_out_packages"))
    parser.add_argument("--encoders", type=Path, default=FOLDER, help="folder of the trained encoders")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_code_search_cpu.json")
    given = parser.parse_args()
    code_encoder, _, revision = given.code_encoder.partition("@")
    if not revision:
        parser.error(f"--code-encoder {given.code_encoder}: must be ID@REVISION, as weights of a hub may change")
    _stemmer()  # or an error before anything slow
    about = report.machine("cpu", ("torch", "transformers", "nltk", "sentence-transformers"))

    environment, packages, counts = Environment(given.folder), [], {}
    for name in (*given.packages, *given.java_packages):
        package = read(name, environment)
        version = (JAVA_PACKAGES if package.java else PACKAGES)[name].version
        language = "java" if package.java else "python"
        counts[name] = {"version": version, "language": language, "functions": len(package.functions)}
        if len(package.functions) >= (FEWEST_JAVA if package.java else FEWEST):
            packages.append(package)
        print(name, counts[name], flush=True)
    found = Questions(packages)
    packages = found.packages

    names = found.add([lexical(one) for one in packages])
    bases = {BM25: found.logit(OF_BM25), LEXICAL: found.logit(names)}
    ranks = {"chance": [found.chance()]}
    ranks |= {name: [found.feature(name)] for name in names} | {name: [each] for name, each in bases.items()}
    done: list[int] = []

    def rows(name: str, features: list[str]) -> None:
        """Alone and with each lexical row; `features` stand in place of an earlier row's."""
        ranks.setdefault(name, []).append(found.logit(features))
        for base, of_base in ((BM25, OF_BM25), (LEXICAL, names)):
            ranks.setdefault(f"{base} and {name}", []).append(found.logit([*of_base, *features]))
        print(name, flush=True)

    weights = environment.encoder()
    if weights is not None:
        rows("MiniLM", found.add([{"MiniLM": each} for each in of_minilm(weights, packages)]))
    of_code = {"id": code_encoder, "revision": revision, "row": code_encoder.rpartition("/")[2]}
    weights, reason = fetched(code_encoder, revision)
    if weights is None:
        of_code["skipped"] = reason
    else:
        rows(of_code["row"], found.add([{of_code["row"]: each} for each in of_code_encoder(weights, packages)]))

    def write() -> None:
        report.write(
            given.output,
            about,
            steps=given.steps,
            tuning=TUNING,
            pretrained=ENCODER if "MiniLM" in ranks else None,
            code_encoder=of_code,
            seeds=done,
            packages=counts,
            **found.tables(ranks, bases),
        )

    write()
    if not given.seeds:
        return
    encoders = Encoders(given.steps, given.encoders)
    corpus, tokenizer = encoders.corpus, encoders.corpus.tokenizer
    heads = {triple.head for triple in corpus.splits.train}
    library = documented_functions(
        corpus.graph, corpus.documents.text, heads, functions=TUNING["functions"], words=WORDS
    )
    for seed in given.seeds:
        for state, make in encoders.of(seed, before=seed == given.seeds[0]):
            model = make()
            rows(f"encoder {state}", found.add([of_encoder(model, tokenizer, one) for one in packages]))
            model = tuned(model, tokenizer, library, seed)
            rows(f"encoder {state}, tuned", found.add([of_encoder(model, tokenizer, one) for one in packages]))
        done.append(seed)
        write()


if __name__ == "__main__":
    main()
