"""What a tokenizer's chat template makes of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from helpers.data.rows import Unusable

# A tokenizer without a chat template gets this one: the layout of an instruction-tuned model in plain text.
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '### Response:\n' + message['content'] + eos_token + '\n\n' }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% else %}{{ '### Instruction:\n' + message['content'] + '\n\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
REASONING = "reasoning_content"  # key of a message, in records and in templates that have one
THINK, END_OF_THINK = "<think>\n", "\n</think>\n\n"  # around reasoning where a template has no key for it
MARK = "law-7"


class ChatTemplate:
    """The chat template of a tokenizer. A tokenizer without one gets `PLAIN_TEMPLATE`.

    What a template has no place for goes where it has an equivalent: a system text before the first question, reasoning between
    <think> and </think> before the answer.

    Raises ValueError where the template ends the assistant's turn with no special token: the model could not learn to stop.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            tokenizer.chat_template = PLAIN_TEMPLATE
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        self.writes_system = self._writes({"role": "system", "content": MARK}, question)
        self.writes_reasoning = self._writes(question, answer | {REASONING: MARK})
        self.stop_token_id = self._end_of_turn([question, answer | {"content": MARK}])

    def place(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """The messages with every part where the template writes it."""
        placed = []
        for message in messages:
            message = dict(message)
            if REASONING in message and not self.writes_reasoning:
                message["content"] = THINK + message.pop(REASONING) + END_OF_THINK + message["content"]
            placed.append(message)
        if placed[0]["role"] == "system" and not self.writes_system:
            system, question, *rest = placed
            placed = [question | {"content": f"{system['content']}\n\n{question['content']}"}, *rest]
        return placed

    def text(self, messages: Sequence[Mapping[str, str]], *, ask: bool = False) -> str:
        """The conversation as the model reads it; with `ask` up to where it has to write. Raises Unusable where it is refused."""
        return self._rendered(self.place(messages), ask)

    def prompt(self, record) -> str:
        """What a record asks, up to where the model has to write its last message."""
        return self.text(record.messages[:-1], ask=True)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]  # a template writes its own

    def stop_token_ids(self) -> list[int]:
        """What ends a generation: the end of a turn and, where it is another token, the end of a text."""
        own = self.tokenizer.eos_token_id
        if own in (None, self.stop_token_id):
            return [self.stop_token_id]
        return [self.stop_token_id, own]

    def _rendered(self, messages: list[dict[str, Any]], ask: bool = False) -> str:
        try:
            return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
        except (jinja2.TemplateError, TypeError) as error:
            raise Unusable(f"the chat template refuses it ({error})") from error

    def _writes(self, *messages: dict[str, Any]) -> bool:
        try:
            return MARK in self._rendered(list(messages))
        except Unusable:
            return False

    def _end_of_turn(self, turns: list[dict[str, Any]]) -> int:
        """The special token with which the chat template ends a turn of the assistant. Raises ValueError where there is none."""
        special = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
        after = self._rendered(turns).rpartition(MARK)[2]
        for token in self.encode(after):
            if self.tokenizer.convert_ids_to_tokens(token) in special:
                return token
        raise ValueError(
            "base_model: its chat template ends the assistant's turn with no special token, so that a model trained with it "
            "cannot learn to stop. Choose another model, or set tokenizer.chat_template"
        )
