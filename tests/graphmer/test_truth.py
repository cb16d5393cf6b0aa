"""Calls that the sources prove, beside those that the interpreter makes when a package's code runs."""

from pathlib import Path

import jinja2
import pytest

from benchmarks.graph import calls_of, resolver, scored, truth, watched

pytestmark = pytest.mark.once

TEMPLATES = {
    "base": "<title>{% block title %}{{ name|upper }}{% endblock %}</title>{% block body %}{% endblock %}",
    "page": """{% extends "base" %}{% from "macros" import row with context %}{% block title %}{{ super() }}!{% endblock %}
        {% block body %}{% for one in rows|sort(attribute="age") if one.age is odd %}{{ row(one, loop.index) }}{% else %}none{% endfor %}
        {% set total = namespace(value=0) %}{% for one in rows %}{% set total.value = total.value + one.age %}{% endfor %}{{ total.value }}
        {% filter indent(4) %}{% include "part" %}{% endfilter %}{{ rows|map(attribute="name")|join(", ")|e }}{% endblock %}""",
    "macros": "{% macro row(one, index=1) %}{{ index }}. {{ one.name|default('?') }} ({{ '%.1f'|format(one.age) }}){% endmacro %}",
    "part": "{{ rows|length }} of {{ 2 ** 3 }} {{ 'a' if rows else 'b' }} {# nothing #} {% raw %}{{ }}{% endraw %}",
}


def render() -> None:
    """Most of what jinja2 does: reading, compiling, filters, inheritance, and errors that name their line."""
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template("page").render(name="x", rows=[{"name": "<a>", "age": 3}, {"name": "b", "age": 4}])
    assert "X!" in page and "&lt;a&gt;" in page and "(3.0)" in page
    assert [name for name in environment.list_templates()] == sorted(TEMPLATES)
    for wrong in ("{% if %}", "{{ a b }}", "{% endfor %}", "{{ 'a' }", "{% unknown %}", "{{ x|nothing }}"):
        with pytest.raises(jinja2.TemplateSyntaxError):
            environment.from_string(wrong)
    with pytest.raises(jinja2.UndefinedError):
        environment.from_string("{{ missing }}").render()
    assert environment.compile_expression("1 + 2 * 3")() == 7


def test_what_is_known_is_what_runs_and_most_calls_that_run_are_known():
    package = Path(jinja2.__file__).parent
    rows = watched(f"{package}/", render)
    right = truth(rows, {str(path): calls_of(str(path)) for path in package.rglob("*.py")})
    answers, _, _ = resolver(package)
    known = scored("jinja2", right, answers, right)
    assert known["reached"] > 300
    assert known["right"] / known["answered"] > 0.98
    assert known["right"] / known["reached"] > 0.85
