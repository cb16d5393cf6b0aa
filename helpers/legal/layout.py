"""What the model reads and what it is trained to write: prompt, response, tokens, labels, and the way back from text.

# T tokens
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helpers.legal.records import Record
from helpers.parameters import one_of

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

LAYOUTS = ("chat", "instruction")
MAX_LENGTH = 1024
TOO_LONG, SPELLS_STOP = "too long", "spells out a stop token"
MULTIPLE = 128  # of lengths: what a TPU's matrix unit and fused attention kernels tile by
IGNORED = -100  # label of a token without loss
SECTIONS = {  # in the order in which they are written
    name: name.replace("_", " ").title() for name in ("topic", "difficulty", "reasoning", "answer", "case_citation")
}
REQUIRED = ("topic", "difficulty", "reasoning", "answer")
HEADING = re.compile(
    rf"^[ \t]*#{{1,6}}[ \t]*(Instruction|Response|{'|'.join(SECTIONS.values())})[ \t]*(?::|$)",
    re.MULTILINE | re.IGNORECASE,
)
STEP = re.compile(r"\bStep (\d+):", re.IGNORECASE)


def steps_of(reasoning: str) -> list[int]:
    """The numbers of its steps, as they are written; none of prose."""
    return [int(number) for number in STEP.findall(reasoning)]


def sections_of(record: Record) -> tuple[str, ...]:
    """The sections that have a text, in their order."""
    return tuple(name for name in SECTIONS if getattr(record, name))


def is_conversation(record: Record) -> bool:
    """Whether the answer stands without headings: a record that has nothing but a question and an answer."""
    return sections_of(record) in ((), ("answer",))


def system_text(record: Record) -> str:
    """What the model is told to write: the sections that `record` has; "" for a conversation, which is told nothing."""
    if is_conversation(record):
        return ""
    how = "(Step 1, Step 2 and so on)" if STEP.search(record.reasoning) else "(in prose)"
    explained = {"difficulty": " (basic, intermediate, advanced or expert)", "reasoning": f" {how}"}
    *first, last = [f"### {SECTIONS[name]}{explained.get(name, '')}" for name in sections_of(record)]
    count = ("one section", "two sections", "three sections", "four sections", "five sections")[len(first)]
    headings = f"{', '.join(first)} and {last}" if first else last
    return f"You are a legal assistant. Write {count}, each under its own heading: {headings}."


WHOLE = Record(id="", question="", reasoning="Step 1: ...", **dict.fromkeys({*SECTIONS} - {"reasoning"}, "..."))
SYSTEM = system_text(WHOLE)


def response(record: Record) -> str:
    """The text to be written for `record`: its sections under their headings, or the answer alone of a conversation."""
    if is_conversation(record):
        return record.answer
    written = "".join(
        f"### {SECTIONS[name]}: {getattr(record, name)}\n"
        if name in ("topic", "difficulty")
        else f"\n### {SECTIONS[name]}:\n{getattr(record, name)}\n"
        for name in sections_of(record)
    )
    return written.strip()


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
        """All sections that were asked for are there, each once, in order; a citation may be left out."""
        return not self.problems

    @property
    def steps(self) -> int:
        return len(steps_of(self.reasoning))


def parse_response(text: str, record: Record | None = None) -> Response:
    """The sections of a generated text, which may lack any of them or be cut off anywhere.

    Asked for are topic, difficulty, steps and answer, or what `record` has of these; of a conversation all text is the
    answer. Of a section that comes twice the first counts; the text ends where a new `### Instruction` begins.
    """
    if record and is_conversation(record):
        return Response(answer=text.strip())
    names = {title.lower(): name for name, title in SECTIONS.items()}
    found: dict[str, str] = {}
    problems = []
    _, *parts = HEADING.split(_without_unfinished_heading(text))
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        name = names.get(title.lower())
        if name is None and found:
            problems.append(f"goes on with a new {title.lower()}")
            break
        if name in found:
            problems.append(f"{name} twice")
        elif name:
            found[name] = body.strip()
    required = [name for name in REQUIRED if not record or getattr(record, name)]
    problems += [f"no {name}" for name in required if not found.get(name)]
    if list(found) != [name for name in SECTIONS if name in found]:
        problems.append("sections out of order")
    stepped = not record or STEP.search(record.reasoning)
    if stepped and found.get("reasoning") and not STEP.search(found["reasoning"]):
        problems.append("reasoning without steps")
    return Response(**found, problems=tuple(problems))


def _without_unfinished_heading(text: str) -> str:
    before, _, last = text.rpartition("\n")
    title = last.strip().lstrip("#").lstrip().lower()
    cut_off = last.startswith("#") and any(name.lower().startswith(title) for name in SECTIONS.values())
    return before if cut_off and not HEADING.match(last) else text


# ---- tokens and labels


class Layout:
    """How a record becomes a prompt and a completion, in text and in tokens.

    name: "chat" renders the model's own chat template; "instruction" is plain text for models without one:
        `### Instruction:`, `### Response:`, then the response and the tokeniser's end-of-text token.

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
        self.tokenizer, self.name = tokenizer, name
        self.stop_token_id = tokenizer.eos_token_id if name == "instruction" else self._end_of_turn()
        self._system_role = name == "chat" and self._renders_system()
        self._check_prompt()

    # -- text

    def prompt(self, asked: Record | str) -> list[dict[str, str]] | str:
        """Messages ("chat") or text ("instruction") that ask for the sections of a record, or a question for all five.

        Of a conversation what was said before the question comes first, and nothing is asked for.
        """
        if isinstance(asked, str):
            asked = replace(WHOLE, question=asked)
        system = system_text(asked)
        turns = [*asked.turns, ("user", asked.question)]
        if self.name == "instruction":
            if system not in ("", SYSTEM):
                turns[-1] = "user", f"{asked.question}\n\n{system}"
            heads = {"assistant": "Response"}
            told = "".join(f"### {heads.get(role, 'Instruction')}:\n{text}\n\n" for role, text in turns)
            return f"{told}### Response:\n"
        if system:
            turns.insert(0, ("system", system))
        if turns[0][0] == "system" and not self._system_role:
            (_, system), (role, text), *rest = turns
            turns = [(role, f"{system}\n\n{text}"), *rest]
        return [{"role": role, "content": text} for role, text in turns]

    def example(self, record: Record) -> dict[str, Any]:
        """`record` as one row of a prompt-completion data set of TRL, with the columns prompt and completion."""
        text = response(record)
        completion = text if self.name == "instruction" else [{"role": "assistant", "content": text}]
        return {"prompt": self.prompt(record), "completion": completion}

    def prompt_text(self, prompt: list[dict[str, str]] | str) -> str:
        """What `prompt` gives as the model reads it, up to where generation starts."""
        if self.name == "instruction":
            return prompt
        return self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)

    def text(self, example: dict[str, Any]) -> str:
        """Prompt and completion as the model reads them, with the token that ends them."""
        whole = example["prompt"] + example["completion"]
        if self.name == "chat":
            return self.tokenizer.apply_chat_template(whole, tokenize=False)
        return whole if whole.endswith(self.tokenizer.eos_token) else whole + self.tokenizer.eos_token

    def shown(self, record: Record) -> str:
        """To read: the prompt, and what is learned."""
        example = self.example(record)
        prompt = self.prompt_text(example["prompt"])
        return f"\n--- read only\n{prompt}\n--- learned\n{self.text(example).removeprefix(prompt)}"

    def prompt_ids(self, asked: Iterable[Record | str]) -> list[list[int]]:
        """Token ids of each prompt, up to where generation starts."""
        return self._encode([self.prompt_text(self.prompt(each)) for each in asked])

    def tokens(self, records: Sequence[Record]) -> list[tuple[list[int], list[int]]]:
        """Token ids of each record's prompt, and of prompt and completion, nothing cut."""
        whole = self._encode([self.text(self.example(record)) for record in records])
        return [*zip(self.prompt_ids(records), whole, strict=True)]

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
            return SYSTEM in self.prompt_text(messages)
        except jinja2.TemplateError:
            return False

    def _check_prompt(self) -> None:
        example = self.example(WHOLE)
        prompt = self.prompt_text(example["prompt"])
        if not self.text(example).startswith(prompt):
            raise ValueError(
                f"layout='chat': this chat template asks with {prompt[-40:]!r}, and a conversation with its answer does not "
                "go on from there, so the model would be asked in another way than it was trained (reasoning models' "
                "templates do this). Use layout='instruction', or a model with another template"
            )

    # -- length

    def lengths(self, records: Sequence[Record]) -> list[int]:
        """Tokens of each record, nothing cut."""
        return [*map(len, self._encode([self.text(self.example(record)) for record in records]))]

    def fit(self, records: Sequence[Record], max_length: int) -> tuple[tuple[Record, ...], tuple[tuple[str, str], ...]]:
        """The records of at most `max_length` tokens that do not spell out a stop token, and the others' ids and reasons.

        None is cut. Raises ValueError where no record is left.
        """
        stops = self.tokenizer.convert_ids_to_tokens(list(self.stop_token_ids))
        used, out = [], []
        for record, length in zip(records, self.lengths(records), strict=True):
            spelled = any(stop in text for stop in stops for text in (record.asked, response(record)))
            if spelled or length > max_length:
                out.append((record.id, SPELLS_STOP if spelled else TOO_LONG))
            else:
                used.append(record)
        if records and not used:
            counts = ", ".join(f"{reason} {count:,}" for reason, count in Counter(reason for _, reason in out).items())
            raise ValueError(
                f"max_length={max_length}: none of {len(records):,} records can be used ({counts}); raise it, or repair the records"
            )
        return tuple(used), tuple(out)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        plain = self.name == "instruction"  # a template writes its own beginning-of-text token
        return self.tokenizer(texts, add_special_tokens=plain, verbose=False)["input_ids"] if texts else []


def choose_max_length(lengths: Sequence[int], wanted: int = 0) -> tuple[int, str]:
    """Tokens a training sequence may have, a multiple of 128, and the reason for it.

    lengths: tokens of each record (`Layout.lengths`).
    wanted: rounded up; 0 takes the longest, and for the memory's sake no more than MAX_LENGTH.
    """
    chosen = round_up(wanted) if wanted else min(round_up(max(lengths)), MAX_LENGTH)
    why = (
        f"max_length={wanted:,}"
        if wanted
        else f"the longest record has {max(lengths):,} tokens, at most {MAX_LENGTH:,}"
    )
    longer = sum(length > chosen for length in lengths)
    return chosen, (
        f"max_length={chosen:,} ({why}, in steps of {MULTIPLE}); {longer:,} of {len(lengths):,} training records are longer and set "
        "aside: cut, they would teach an answer without its reasoning"
    )


def round_up(number: int, multiple: int = MULTIPLE) -> int:
    return multiple * math.ceil(number / multiple)
