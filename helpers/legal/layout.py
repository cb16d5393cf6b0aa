"""What the model reads and what it is trained to write: prompt, response, tokens, labels, and the way back from text.

# T tokens
"""

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helpers.legal.records import Record
from helpers.parameters import one_of

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

LAYOUTS = ("chat", "instruction")
MAX_LENGTH = 1024
MULTIPLE = 128  # of lengths: what a TPU's matrix unit and fused attention kernels tile by
IGNORED = -100  # label of a token without loss
SYSTEM = (
    "You are a legal assistant. Write five sections, each under its own heading: ### Topic, ### Difficulty (basic, "
    "intermediate, advanced or expert), ### Reasoning (Step 1, Step 2 and so on), ### Answer and ### Case Citation."
)
SECTIONS = {  # in the order in which they are written
    "topic": "Topic",
    "difficulty": "Difficulty",
    "reasoning": "Reasoning",
    "answer": "Answer",
    "case_citation": "Case Citation",
}
REQUIRED = ("topic", "difficulty", "reasoning", "answer")
HEADING = re.compile(
    rf"^[ \t]*#{{1,6}}[ \t]*(Instruction|Response|{'|'.join(SECTIONS.values())})[ \t]*(?::|$)",
    re.MULTILINE | re.IGNORECASE,
)
STEP = re.compile(r"\bStep (\d+):", re.IGNORECASE)


def response(record: Record) -> str:
    """The text to be written for `record`: its sections under their headings; an empty reasoning or citation has none."""
    text = f"### Topic: {record.topic}\n### Difficulty: {record.difficulty}"
    for name in ("reasoning", "answer", "case_citation"):
        if name == "answer" or getattr(record, name):
            text += f"\n\n### {SECTIONS[name]}:\n{getattr(record, name)}"
    return text


# ---- reading a response back


@dataclass(frozen=True)
class Response:
    """A generated text read back; a section that is not there, or has no text, is ""."""

    topic: str = ""
    difficulty: str = ""
    reasoning: str = ""
    answer: str = ""
    case_citation: str = ""
    problems: tuple[str, ...] = ()  # why it is not well-formed

    @property
    def well_formed(self) -> bool:
        """Topic, difficulty, reasoning in steps and answer are all there, each once, in order; a citation may be left out."""
        return not self.problems

    @property
    def steps(self) -> int:
        return len(STEP.findall(self.reasoning))


def parse_response(text: str) -> Response:
    """The sections of a generated text, which may lack any of them or be cut off anywhere. Never raises.

    Of a section that comes twice the first counts. Where the model goes on to a new `### Instruction` or `### Response`,
    the text ends. Text before the first heading is passed over.
    """
    found: dict[str, str] = {}
    problems = []
    text = _without_unfinished_heading(text)
    headings = list(HEADING.finditer(text))
    names = {title.lower(): name for name, title in SECTIONS.items()}
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    for heading, end in zip(headings, ends, strict=False):
        name = names.get(heading[1].lower())
        if name is None:
            if found:
                problems.append(f"goes on with a new {heading[1].lower()}")
                break
        elif name in found:
            problems.append(f"{name} twice")
        else:
            found[name] = text[heading.end() : end].strip()
    problems += [f"no {name}" for name in REQUIRED if not found.get(name)]
    if list(found) != [name for name in SECTIONS if name in found]:
        problems.append("sections out of order")
    if found.get("reasoning") and not STEP.search(found["reasoning"]):
        problems.append("reasoning without steps")
    return Response(**found, problems=tuple(problems))


def _without_unfinished_heading(text: str) -> str:
    before, _, last = text.rpartition("\n")
    title = last.strip().lstrip("#").lstrip().lower()
    cut_off = last.startswith("#") and any(name.lower().startswith(title) for name in SECTIONS.values())
    return before if cut_off and not HEADING.match(last) else text


# ---- tokens and labels


@dataclass(frozen=True)
class Truncation:
    """What did not fit into max_length, by record id."""

    max_length: int
    records: int  # all of them
    reasoning_cut: tuple[str, ...]  # last steps dropped; the answer is whole
    answer_cut: tuple[str, ...]  # all steps dropped and the end of the answer too: these end without a stop token
    tokens_cut: int
    set_aside: tuple[str, ...] = ()  # the question leaves no room for an answer

    def __str__(self) -> str:
        if not self.reasoning_cut and not self.answer_cut and not self.set_aside:
            return f"max_length={self.max_length:,}: all {self.records:,} records fit"
        return (
            f"max_length={self.max_length:,}: of {self.records:,} records {len(self.reasoning_cut):,} lost reasoning steps, "
            f"{len(self.answer_cut):,} the end of their answer{_some(self.answer_cut)}, and {len(self.set_aside):,} are set aside "
            f"because the question leaves no room for an answer{_some(self.set_aside)}; {self.tokens_cut:,} tokens cut in "
            "all. A larger max_length cuts less"
        )


class Layout:
    """How a record becomes a prompt and a completion, in text and in tokens.

    name: "chat" renders the model's own chat template: SYSTEM, the question, and the response as the assistant's turn.
        "instruction" is plain text for models without one: `### Instruction:`, `### Response:`, then the response and
        the tokeniser's end-of-text token.

    Raises ValueError for another name, a tokeniser without chat template, one that has no token to stop at, and a template
    whose prompt is not how the same conversation with its answer begins: what is asked would not be what was trained.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", name: str = "chat"):
        one_of("layout", name, LAYOUTS)
        if name == "chat" and not tokenizer.chat_template:
            raise ValueError(
                f"layout='chat': the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template. "
                "Use layout='instruction', or a chat model such as Qwen/Qwen2.5-0.5B-Instruct"
            )
        if name == "instruction" and tokenizer.eos_token_id is None:
            raise ValueError("layout='instruction': the tokenizer has no end-of-text token; set tokenizer.eos_token")
        self.tokenizer = tokenizer
        self.name = name
        self.stop_token_id = tokenizer.eos_token_id if name == "instruction" else self._end_of_turn()
        self._system_role = name == "chat" and self._renders_system()
        if name == "chat":
            self._check_prompt()

    # -- text

    def prompt(self, question: str) -> list[dict[str, str]] | str:
        """Messages ("chat") or text ("instruction") that ask `question`."""
        if self.name == "instruction":
            return f"### Instruction:\n{question}\n\n### Response:\n"
        if self._system_role:
            return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        return [{"role": "user", "content": f"{SYSTEM}\n\n{question}"}]

    def example(self, record: Record) -> dict[str, Any]:
        """`record` as one row of a prompt-completion data set of TRL, with the columns prompt and completion."""
        text = response(record)
        completion = text if self.name == "instruction" else [{"role": "assistant", "content": text}]
        return {"prompt": self.prompt(record.question), "completion": completion}

    def prompt_ids(self, questions: Iterable[str]) -> list[list[int]]:
        """Token ids of each prompt, up to where generation starts."""
        return self._encode([self._prompt_text(self.prompt(question)) for question in questions])

    # -- stopping

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """What ends a generation: the token that ends each completion, then the tokeniser's own where it is another.

        They differ for a base model: Qwen2.5-0.5B ends a turn with <|im_end|> and a text with <|endoftext|>.
        """
        own = self.tokenizer.eos_token_id
        return (self.stop_token_id,) if own in (None, self.stop_token_id) else (self.stop_token_id, own)

    def set_stop_tokens(self, generation_config: "GenerationConfig") -> None:
        """Makes `generation_config` stop at what the model was trained to end with, and at what it stopped at before."""
        before = generation_config.eos_token_id
        before = before if isinstance(before, list) else [] if before is None else [before]
        generation_config.eos_token_id = list(dict.fromkeys([*self.stop_token_ids, *before]))
        pad = self.tokenizer.pad_token_id
        generation_config.pad_token_id = self.stop_token_ids[-1] if pad is None else pad

    def _end_of_turn(self) -> int:
        """The first special token that the template writes after what the assistant says."""
        turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
        _, _, end = self.tokenizer.apply_chat_template(turns, tokenize=False).rpartition("answer")
        special = {index for index, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        for token in self.tokenizer(end, add_special_tokens=False)["input_ids"]:
            if token in special:
                return token
        raise ValueError(
            "layout='chat': the chat template ends the assistant's turn with no special token, so a model trained with it "
            "cannot learn to stop. Use layout='instruction'"
        )

    def _renders_system(self) -> bool:
        """Whether the template writes a system message; some refuse it and some leave it out."""
        import jinja2

        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "a"}]
        try:
            return SYSTEM in self._prompt_text(messages)
        except jinja2.TemplateError:
            return False

    def _check_prompt(self) -> None:
        example = {"prompt": self.prompt("question"), "completion": [{"role": "assistant", "content": "answer"}]}
        prompt, whole = self._prompt_text(example["prompt"]), self._text(example)
        if not whole.startswith(prompt):
            raise ValueError(
                f"layout='chat': this chat template asks with {prompt[-40:]!r}, and a conversation with its answer does not "
                "go on from there, so the model would be asked in another way than it was trained (reasoning models' "
                "templates do this). Use layout='instruction', or a model with another template"
            )

    # -- tokens

    def tokenize(self, examples: Sequence[dict[str, Any]]) -> list[dict[str, list[int]]]:
        """`input_ids` [T] and `labels` [T] of prompt-completion examples; labels are -100 up to the completion.

        The same as TRL's with completion_only_loss: the completion begins where the tokens of the prompt alone and of
        prompt and completion part, and runs to the end with all that the template or the end of text adds to it.
        """
        prompts = self._encode([self._prompt_text(example["prompt"]) for example in examples])
        wholes = self._encode([self._text(example) for example in examples])
        rows = []
        for prompt, whole in zip(prompts, wholes, strict=True):
            start = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False))])
            rows.append({"input_ids": whole, "labels": [IGNORED] * start + whole[start:]})
        return rows

    def lengths(self, records: Sequence[Record]) -> list[int]:
        """Tokens of each record, nothing cut."""
        return [len(ids) for ids in self._encode([self._text(self.example(record)) for record in records])]

    def encode(self, records: Sequence[Record], max_length: int) -> tuple[list[dict[str, list[int]]], Truncation]:
        """`tokenize` of each record, none longer than `max_length`, and what was cut: rows ready for `SFTTrainer`.

        A record that is too long loses its last reasoning steps, as few as will do, and keeps question, answer,
        citation and stop token. Only an answer that does not fit without any reasoning is cut at its end; a record of
        whose answer nothing fits is set aside, and has no row.

        Raises ValueError where that is so of all records, and where a text spells out a token that stops generation.
        """
        self._check_no_stop_inside(records)
        rows = self.tokenize([self.example(record) for record in records])
        reasoning_cut, answer_cut, no_room = [], [], []
        tokens_cut = 0
        for index, (record, row) in enumerate(zip(records, rows, strict=True)):
            length = len(row["input_ids"])
            if length <= max_length:
                continue
            for shorter in _without_last_steps(record):
                row = self.tokenize([self.example(shorter)])[0]
                if len(row["input_ids"]) <= max_length:
                    reasoning_cut.append(record.id)
                    break
            else:
                row = {name: values[:max_length] for name, values in row.items()}
                completion = [token for token in row["labels"] if token != IGNORED]
                if parse_response(self.tokenizer.decode(completion)).answer:
                    answer_cut.append(record.id)
                else:
                    no_room.append(record.id)
            rows[index] = row
            tokens_cut += length - len(row["input_ids"])
        if records and len(no_room) == len(records):
            raise ValueError(
                f"max_length={max_length}: the question leaves no room for an answer in any of {len(records)} records"
                f"{_some(no_room)}. Raise max_length, or shorten them"
            )
        rows = [row for record, row in zip(records, rows, strict=True) if record.id not in no_room]
        cut = tuple(reasoning_cut), tuple(answer_cut), tokens_cut, tuple(no_room)
        return rows, Truncation(max_length, len(records), *cut)

    def _check_no_stop_inside(self, records: Sequence[Record]) -> None:
        stops = self.tokenizer.convert_ids_to_tokens(list(self.stop_token_ids))
        for record in records:
            text = f"{record.question}\n{response(record)}"
            if spelled := [stop for stop in stops if stop in text]:
                raise ValueError(
                    f"record {record.id!r}: its text spells out {spelled[0]}, which ends a generation; remove it"
                )

    def _prompt_text(self, prompt: list[dict[str, str]] | str) -> str:
        if self.name == "instruction":
            return prompt
        return self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)

    def _text(self, example: dict[str, Any]) -> str:
        whole = example["prompt"] + example["completion"]
        if self.name == "chat":
            return self.tokenizer.apply_chat_template(whole, tokenize=False)
        return whole if whole.endswith(self.tokenizer.eos_token) else whole + self.tokenizer.eos_token

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        plain = self.name == "instruction"  # a template writes its own beginning-of-text token
        return self.tokenizer(texts, add_special_tokens=plain, return_attention_mask=False, verbose=False)["input_ids"]


def choose_max_length(lengths: Sequence[int], wanted: int = 0) -> tuple[int, str]:
    """Tokens a training sequence may have, a multiple of 128, and the reason for it.

    lengths: tokens of each record (`Layout.lengths`).
    wanted: rounded up to a multiple of 128 (1,000 gives 1,024); 0 takes the length that 99 % of the records do not exceed,
        and for the memory's sake no more than MAX_LENGTH.
    """
    if wanted:
        return round_up(wanted), f"max_length={wanted:,}, rounded up to a multiple of 128: {round_up(wanted):,}"
    percentile = sorted(lengths)[math.ceil(0.99 * len(lengths)) - 1]
    chosen = min(round_up(percentile), MAX_LENGTH)
    longer = sum(length > chosen for length in lengths)
    capped = f", capped at {chosen:,}" if round_up(percentile) > chosen else ""
    return chosen, (
        f"max_length={chosen:,}: 99 % of {len(lengths):,} records have at most {percentile:,} tokens, rounded up to a "
        f"multiple of 128{capped}; {longer:,} are longer (longest {max(lengths):,})"
    )


def round_up(number: int, multiple: int = MULTIPLE) -> int:
    return multiple * math.ceil(number / multiple)


def _without_last_steps(record: Record) -> Iterable[Record]:
    """`record` with one reasoning step less, two less, and so on to none; sentences where it has no steps."""
    starts = [step.start() for step in STEP.finditer(record.reasoning)]
    if not starts:
        starts = [sentence.end() for sentence in re.finditer(r"[.;!?]\s+", record.reasoning)]
    for start in reversed([0, *(start for start in starts if start > 0)]):
        yield replace(record, reasoning=record.reasoning[:start].rstrip())


def _some(ids: Sequence[str]) -> str:
    return f" ({', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''})" if ids else ""
