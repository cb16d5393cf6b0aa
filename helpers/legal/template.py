"""What a tokenizer's chat template makes of a conversation, and what it would lose of it in silence."""

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
REASONING = ("reasoning_content", "thinking", "reasoning")  # keys that templates have for it
THINK, END_OF_THINK = "<think>\n", "\n</think>\n\n"  # around reasoning where a template has no key for it
# Between a call and its result, which stand in one order (data.py)
RESULTS = (("tool", "tool_call_id"), ("tool", "name"))
MARK = "law-7"


class ChatTemplate:
    """The chat template of a tokenizer; TRL's training template where it has one, which keeps the reasoning of earlier turns.

    A tokenizer without a template gets `PLAIN_TEMPLATE`. What a template has no place for goes where it has an equivalent:
    a system text before the first question, a user's name before their text, reasoning between <think> and </think>.

    Raises ValueError where the template ends the assistant's turn with no special token: the model could not learn to stop.
    """

    def __init__(self, tokenizer):
        from trl.chat_template_utils import get_training_chat_template

        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            tokenizer.chat_template = PLAIN_TEMPLATE
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        try:
            self.jinja = get_training_chat_template(tokenizer)
        except ValueError:  # TRL knows another one for some thirty templates only
            self.jinja = None
        self.special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        self.writes_system = self._writes({"role": "system", "content": MARK}, question)
        self.writes_name = self._writes(question | {"name": MARK})
        keys = (key for key in REASONING if self._writes(question, answer | {key: MARK}))
        self.reasoning_key = next(keys, None)
        self.stop_token_id = self._end_of_turn([question, answer | {"content": MARK}])

    def text(self, messages: Sequence[Mapping[str, Any]], tools=None, *, ask: bool = False) -> str:
        """The conversation as the model reads it; with `ask` up to where it has to write. Raises Unusable where it is refused."""
        placed = [self._placed(message) for message in messages]
        if placed[0]["role"] == "system" and not self.writes_system:
            system, question, *rest = placed
            placed = [question | {"content": f"{system['content']}\n\n{question['content']}"}, *rest]
        return self._rendered(placed, list(tools or ()) or None, ask)

    def prompt(self, record) -> str:
        """What a record asks, up to where the model has to write its last message."""
        return self.text(record.messages[:-1], record.tools, ask=True)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]  # a template writes its own

    def stop_token_ids(self) -> list[int]:
        """What ends a generation: the end of a turn and, where it is another token, the end of a text."""
        own = self.tokenizer.eos_token_id
        if own in (None, self.stop_token_id):
            return [self.stop_token_id]
        return [self.stop_token_id, own]

    def check(self, record, first: int) -> None:
        """Raises Unusable where the template leaves out a part of a message or the tools, or a text spells out a special token.

        Every text is replaced by a mark, and each mark must be written. first: the reasoning of turns before this one may be lost.
        """
        text = self.text(record.messages, record.tools)
        if record.tools and self.text(record.messages) == text:
            raise Unusable("the chat template leaves out `tools`. Remove the column, or use another model")
        marked, marks = [], {}
        for number, message in enumerate(record.messages):
            copy, role = dict(message), message["role"]
            for key, value in message.items():
                may_be_lost = (role, key) in RESULTS or (key in REASONING and number < first)
                if key in ("role", "weight") or may_be_lost or not value:
                    continue
                mark = f"{MARK}-{number}-{key}-"
                marks[mark] = key, role
                if key == "tool_calls":
                    copy[key] = []
                    for call in value:
                        function = call["function"] | {"name": mark}
                        copy[key].append(call | {"function": function})
                elif isinstance(value, str):
                    copy[key] = mark
                else:
                    raise Unusable(f"a message has `{key}`, which no chat template writes. Remove it from the records")
            marked.append(copy)
        written = self.text(marked, record.tools)
        for mark, (key, role) in marks.items():
            if mark not in written:
                raise Unusable(
                    f"the chat template leaves out `{key}` of a message of `{role}`. Move it into the `content` of another "
                    "message, remove it from the records, or use a model whose template writes it"
                )
        for token in self.special:
            if any(token in str(message) for message in record.messages):
                raise Unusable(f"contains the special token {token}")

    def _placed(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with its reasoning and its name where the template writes them."""
        message = dict(message)
        reasoning = message.pop(REASONING[0], None)
        if reasoning:
            if self.reasoning_key:
                message[self.reasoning_key] = reasoning
            else:
                message["content"] = THINK + reasoning + END_OF_THINK + message["content"]
        if message["role"] == "user" and "name" in message and not self.writes_name:
            message["content"] = f"{message.pop('name')}: {message['content']}"
        return message

    def _rendered(self, messages, tools=None, ask: bool = False) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=tools, chat_template=self.jinja, tokenize=False, add_generation_prompt=ask
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise Unusable(f"the chat template refuses it ({error})") from error

    def _writes(self, *messages: Mapping[str, Any]) -> bool:
        try:
            return MARK in self._rendered(list(messages))
        except Unusable:
            return False

    def _end_of_turn(self, turns) -> int:
        """The special token with which the chat template ends a turn of the assistant. Raises ValueError where there is none."""
        after = self._rendered(turns).rpartition(MARK)[2]
        for token in self.encode(after):
            if self.tokenizer.convert_ids_to_tokens(token) in self.special:
                return token
        raise ValueError(
            "base_model: its chat template ends the assistant's turn with no special token, so that a model trained with it "
            "cannot learn to stop. Choose another model, or set tokenizer.chat_template"
        )
