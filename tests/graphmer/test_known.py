"""What is called known, beside what runs: small programs of many kinds in which a name or an attribute is bound again."""

import importlib
import sys

import pytest

from benchmarks.graph import calls_of, resolver, truth, watched
from helpers.graphmer.ask import Asked
from tests.harness import write

pytestmark = pytest.mark.once

BASE = """
class A:
    def go(self): return self
    def stop(self): return self
class B(A):
    def go(self): return self
class Other:
    def go(self): return self
    def stop(self): return self
def one(*_, **__): return A()
def two(*_, **__): return Other()
"""

# Each is run as a module below BASE; what it calls must be what is said to be known, wherever something is.
PROGRAMS = {
    "if and else": "if len('x'):\n    def f() -> A: return A()\nelse:\n    def f() -> B: return B()\nf().go()",
    "try and except": "try:\n    import nowhere\n    def f(): return A()\nexcept ImportError:\n    def f(): return Other()\nf().go()",
    "class in branches": "if not len('x'):\n    class C(A): pass\nelse:\n    class C(Other): pass\nC().go()",
    "match": "match 1:\n    case 2:\n        def f(): return A()\n    case _:\n        def f(): return Other()\nf().go()",
    "overload": (
        "from typing import overload\n@overload\ndef f(x: int) -> A: ...\n@overload\ndef f(x: str) -> Other: ...\n"
        "def f(x): return A() if x == 1 else Other()\nf(1).go()\nf('').go()"
    ),
    "own overload": "def overload(f): return two\n@overload\ndef f() -> A: return A()\nf().go()",
    "redefined later": "def f(): return A()\ndef g(): f().go()\ndef f(): return Other()\ng()",
    "assigned later": "f = one\ndef g(): f()\nf = two\ng()",
    "class attribute replaced": "class C:\n    kind = A\n    def run(self): self.kind().go()\nclass D(C):\n    kind = Other\nD().run()",
    "instance attribute replaced": (
        "class C:\n    def __init__(self): self.x = A()\n    def run(self): self.x.go()\n"
        "class D(C):\n    def __init__(self): self.x = Other()\nD().run()"
    ),
    "property replaced": (
        "class C:\n    @property\n    def x(self) -> A: return A()\n    def run(self): self.x.go()\n"
        "class D(C):\n    @property\n    def x(self): return Other()\nD().run()"
    ),
    "property over attribute": (
        "class C:\n    x = A()\n    def run(self): self.x.go()\nclass D(C):\n    @property\n    def x(self): return Other()\nD().run()"
    ),
    "attribute over method": "class C:\n    def f(self): pass\n    def run(self): self.f()\nclass D(C):\n    f = one\nD().run()",
    "instance over method": "class C:\n    def go(self): pass\nc = C()\nc.go = Other().go\nc.go()",
    "mixin before": "class C:\n    def run(self): self.go()\n    def go(self): pass\nclass D(Other, C): pass\nD().run()",
    "result of an override": (
        "class C:\n    def make(self): return A()\n    def run(self): self.make().go()\n"
        "class D(C):\n    def make(self): return Other()\nD().run()"
    ),
    "super in a diamond": (
        "class L(A):\n    def go(self): super().go()\nclass R(A):\n    def go(self): return 1\nclass D(L, R): pass\nD().go()"
    ),
    "super without method": (
        "class L(A):\n    def run(self): super().stop().go()\nclass R(A):\n    def stop(self): return Other()\n"
        "class D(L, R): pass\nD().run()"
    ),
    "monkey patch": "import m\ndef f(): return A()\nm.f = two\nf().go()\nf()",
    "patch of a class": "A.go = Other.go\nA().go()",
    "setattr": "setattr(A, 'go', Other.go)\nA().go()",
    "setattr in a loop": "for name in ('go',):\n    setattr(A, name, Other.stop)\nA().go()",
    "setattr by a function": "def patch(owner, name, value): setattr(owner, name, value)\npatch(A, 'go', Other.stop)\nA().go()",
    "setattr of a module": "import sys\nsetattr(sys.modules['m'], 'one', two)\none().go()",
    "assigned through a parameter": "def patch(owner): owner.go = Other.stop\npatch(A)\nA().go()",
    "globals": "def f(): return A()\nglobals()['f'] = two\nf().go()",
    "globals update": "def f(): return A()\nglobals().update(f=two)\nf().go()",
    "exec": "def f(): return A()\nexec('f = two')\nf().go()",
    "vars of a module": "import sys\ndef f(): return A()\nvars(sys.modules['m'])['f'] = two\nf().go()",
    "__dict__": "import m\ndef f(): return A()\nm.__dict__['f'] = two\nf().go()",
    "del": "def len(x): return A()\ndel len\nlen('')",
    "del of an attribute": "class C(A):\n    def go(self): pass\ndel C.go\nC().go()",
    "delattr": "class C(A):\n    def go(self): pass\ndelattr(C, 'go')\nC().go()",
    "metaclass": "class M(type):\n    def __call__(cls): return Other()\nclass C(A, metaclass=M): pass\nC().go()",
    "metaclass that fills": (
        "class M(type):\n    def __init__(cls, *rest):\n        for name in dir(cls):\n            if name == 'go': "
        "setattr(cls, name, Other.stop)\nclass C(A, metaclass=M): pass\nC().go()"
    ),
    "__new__": "class C(A):\n    def __new__(cls): return Other()\nC().go()",
    "__new__ above": "class N:\n    def __new__(cls): return Other()\nclass C(N):\n    def go(self): pass\nC().go()",
    "__init_subclass__": (
        "class N:\n    def __init_subclass__(cls): cls.go = Other.stop\nclass C(N):\n    def go(self): pass\nC().go()"
    ),
    "__class__": "a = A()\na.__class__ = Other\na.go()",
    "__class__ of self": "class C(A):\n    def turn(self):\n        self.__class__ = D\n        self.go()\nclass D(C):\n    def go(self): pass\nC().turn()",
    "__getattribute__": "class C(A):\n    def __getattribute__(self, name): return two\nC().go()",
    "__getattr__": "class C:\n    def __getattr__(self, name): return two\nC().go()",
    "__getattr__ of a module": "import m\ndef __getattr__(name): return two\nm.absent()",
    "descriptor": "class P:\n    def __get__(self, *rest): return Other()\n    def go(self): pass\nclass C:\n    x = P()\nC().x.go()",
    "decorator that replaces": "def deco(f): return two\n@deco\ndef f() -> A: return A()\nf().go()",
    "decorator that wraps": (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def inner():\n        f()\n        return Other()\n    return inner\n"
        "@deco\ndef f() -> A: return A()\nf().go()"
    ),
    "decorator of a class": "def deco(c): return Other\n@deco\nclass C(A): pass\nC().go()",
    "decorator of a method": "def deco(f): return lambda self: Other()\nclass C:\n    @deco\n    def f(self) -> A: return A()\nC().f().go()",
    "decorator with arguments": "def deco(x):\n    def inner(f): return two\n    return inner\n@deco(1)\ndef f() -> A: return A()\nf().go()",
    "own property": (
        "class property:\n    def __init__(self, f): self.f = f\n    def __get__(self, *rest): return Other()\n"
        "class C:\n    @property\n    def x(self) -> A: return A()\nC().x.go()"
    ),
    "isinstance": "def run(x: A):\n    if isinstance(x, Other): x.go()\nrun(Other())",
    "match of a class": "def run(x: A):\n    match x:\n        case Other(): x.go()\nrun(Other())",
    "isinstance of a rebound": "def run(x):\n    if isinstance(x, A):\n        x = Other()\n        x.go()\nrun(A())",
    "for": "for f in (one, two): f().go()",
    "for over a name": "f = one\nfor f in (two,): pass\nf().go()",
    "with": "import contextlib\nx = A()\nwith contextlib.nullcontext(Other()) as x: pass\nx.go()",
    "__enter__": "class C(A):\n    def __enter__(self): return Other()\n    def __exit__(self, *rest): pass\nwith C() as x: x.go()",
    "except as": "class E(Exception):\n    def go(self): pass\nclass F(E):\n    def go(self): pass\ntry: raise F\nexcept E as x: x.go()",
    "capture": "x = A()\nmatch Other():\n    case x: pass\nx.go()",
    "walrus": "x = A()\nif (x := Other()): pass\nx.go()",
    "walrus in a comprehension": "x = A()\n[x := Other() for _ in '1']\nx.go()",
    "global": "x = A()\ndef f():\n    global x\n    x = Other()\nf()\nx.go()",
    "global within": "f = two\ndef outer():\n    f = one\n    def inner():\n        global f\n        f().go()\n    inner()\nouter()",
    "nonlocal": "def outer():\n    x = A()\n    def inner():\n        nonlocal x\n        x = Other()\n    inner()\n    x.go()\nouter()",
    "closure": "def outer():\n    f = one\n    def inner(): f().go()\n    f = two\n    inner()\nouter()",
    "augmented": "class N(A):\n    def __iadd__(self, other): return Other()\nx = N()\nx += 1\nx.go()",
    "unpacked": "x = A()\nx, y = Other(), 1\nx.go()",
    "starred": "x = A()\n*_, x = [Other()]\nx.go()",
    "default replaced": "def run(f=one): f().go()\nrun.__defaults__ = (two,)\nrun()",
    "class body": "def f(): return Other()\nclass C:\n    x = f()\n    def f(self): return A()",
    "class body in a branch": "class C(A):\n    if len('x'):\n        def go(self): pass\n    else:\n        go = Other.go\nC().go()",
    "conditional method": "class C(A):\n    if not len('x'):\n        def go(self) -> A: return A()\n    else:\n        def go(self): return Other()\nC().go().stop()",
    "alias rebound": "T = A\nif len('x'): T = Other\ndef run(x: T): x.go()\nrun(T())\nT().go()",
    "type[]": "def run(c: type[A]): c().go()\nrun(B)\nrun(A)",
    "union": "def run(x: A | Other): x.go()\nrun(Other())",
    "protocol": "from typing import Protocol\nclass P(Protocol):\n    def go(self): ...\ndef run(x: P): x.go()\nrun(Other())",
    "return of several": "def f(x):\n    if x: return A()\n    return Other()\nf(0).go()",
    "recursive return": "def f(x): return f(0) if x else Other()\ndef g(x):\n    if x: return g(0)\n    return A()\nf(1).go()\ng(1).go()",
    "generator": "def f():\n    yield Other()\n    return A()\nnext(f()).go()",
    "singledispatch": "import functools\n@functools.singledispatch\ndef f(x): return A()\n@f.register\ndef g(x: int): return Other()\nf(1).go()",
    "partialmethod": "import functools\nclass C:\n    def f(self, x): return Other()\n    g = functools.partialmethod(f, 1)\nC().g().go()",
    "enum": "import enum\nclass E(enum.Enum):\n    X = 1\n    def go(self): return Other()\nE.X.go().go()\nE(1).go()",
    "named tuple": "from typing import NamedTuple\nclass N(NamedTuple):\n    x: A\nN(Other()).x if 0 else N(A()).x.go()",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass C(A):\n    x: A = dataclasses.field(default_factory=A)\nC().x.go()\nC().go()",
    "inherited constructor": "class M:\n    def __init__(self): pass\nclass N:\n    def __init__(self): pass\nclass C(M, N): pass\nC()",
    "cls assigned": "class C:\n    kind = A\n    @classmethod\n    def turn(cls): cls.kind = Other\nC.turn()\nC().kind().go()",
    "field of a base": "class C:\n    def __init__(self): self.x = Other()\nclass D(C):\n    x = A()\nD().x.go()",
    "field from elsewhere": "class C:\n    def __init__(self): self.x = A()\n    def run(self): self.x.go()\nc = C()\nc.x = Other()\nc.run()",
    "field from a parameter": "class C:\n    def __init__(self): self.x = A()\ndef fill(c): c.x = Other()\nc = C()\nfill(c)\nc.x.go()",
    "mangled": "class C:\n    def __f(self): return A()\n    def run(self): self.__f().go()\nclass D(C):\n    def __f(self): return Other()\nD().run()",
    "mangled from elsewhere": "class C:\n    def __f(self): return A()\n    def run(self): self.__f().go()\nC._C__f = two\nC().run()",
    "dynamic base": "def base(): return Other\nclass C(base()):\n    def run(self): self.go()\nclass D(C, A): pass\nD().run()",
    "dict of functions": "t = {'f': one, 'g': two}\nt['g']().go()",
    "conditional expression": "(one if not len('x') else two)().go()",
    "or": "(None or two)().go()",
    "lambda": "f = lambda: Other()\nf().go()",
    "await": (
        "import asyncio\nclass C:\n    async def make(self): return A()\n    async def run(self): (await self.make()).go()\n"
        "class D(C):\n    async def make(self): return Other()\nasyncio.run(D().run())"
    ),
    "slots replaced by type()": "C = type('C', (Other,), {})\nC().go()",
    "class made again": "class C(A): pass\nC = type('C', (Other,), {})\nC().go()",
    "object.__setattr__": "object.__setattr__(A(), 'go', 1) if 0 else None\na = A()\nobject.__setattr__(a, 'go', two)\na.go()",
    "__setattr__": (
        "class C:\n    def __init__(self): self.x = A()\n    def __setattr__(self, name, value): self.__dict__[name] = Other()\n"
        "C().x.go()"
    ),
    "sys.modules": "import sys, types\nimport m\nsys.modules['m'] = types.SimpleNamespace(one=two)\nimport m\nm.one().go()",
    "staticmethod of another": "class C:\n    go = staticmethod(two)\nC().go().stop()",
    "the class of an instance": "a = A()\ntype(a).go = Other.stop\na.go()",
    "builtin replaced": "import builtins\nbuiltins.sorted = two\nsorted([])\nimport importlib; del builtins.sorted; builtins.sorted = None",
    "import in branches": "try: from nowhere import one\nexcept ImportError: one = two\none().go()",
    "star import": "def join(*_): return A()\nfrom os.path import *\njoin('a')",
    "container of a subclass": "def run(x: list[A]):\n    for a in x: a.go()\n    x[0].go()\nrun([B()])",
    "nested function again": "def f():\n    def g(): return A()\n    def h(): g().go()\n    def g(): return Other()\n    h()\nf()",
    "instance called": "class C:\n    def __call__(self): return A()\nclass D(C):\n    def __call__(self): return Other()\ndef run(c: C): c().go()\nrun(D())",
    "data descriptor": (
        "class P:\n    def __set_name__(self, owner, name): self.name = name\n"
        "    def __get__(self, instance, owner): return Other() if instance else self\n"
        "    def __set__(self, instance, value): one()\n    def go(self): pass\nclass C:\n    x = P()\n"
        "    def __init__(self): self.x = A()\n    def run(self): self.x.go()\nC().run()\nC.x.go()"
    ),
    "descriptor of a base": (
        "class P:\n    def go(self): pass\nclass Q(P):\n    def __get__(self, *rest): return Other()\nclass C:\n    x: P = Q()\n"
        "    def run(self): self.x.go()\nC().run()"
    ),
    "descriptor from a function": (
        "class Q:\n    def __get__(self, *rest): return Other()\n    def go(self): pass\ndef make() -> Q: return Q()\nclass C:\n"
        "    x = make()\nC().x.go()"
    ),
    "__get__ of several": (
        "class P:\n    def __get__(self, instance, owner): return self if instance is None else Other()\n    def go(self): pass\n"
        "class C:\n    x = P()\nC().x.go()\nC.x.go()"
    ),
    "partial": "import functools\nf = functools.partial(two)\nf().go()\ng = functools.partial(A)\ng().go()",
    "own partial": "def partial(f): return two\npartial(one)().go()",
    "decorator by partial": "import functools\ndef deco(g, f): return g\n@functools.partial(deco, two)\ndef f(): return A()\nf().go()",
    "__copy__": "import copy\nclass C:\n    def go(self): pass\n    def __copy__(self): return Other()\ncopy.copy(C()).go()",
    "singledispatchmethod": (
        "import functools\nclass C:\n    @functools.singledispatchmethod\n    def f(self, x): return A()\n    @f.register\n"
        "    def _(self, x: int): return Other()\n    def run(self): self.f(1).go()\nC().run()"
    ),
    "wraps that does not call": (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def inner(): return two()\n    return inner\n@deco\n"
        "def f(): return A()\nf().go()"
    ),
    "dataclass factories": (
        "import dataclasses\ndef make(): return Other()\n@dataclasses.dataclass\nclass C:\n"
        "    x: object = dataclasses.field(default_factory=make)\n    y: list = dataclasses.field(default_factory=lambda: [A()])\n"
        "    z: A = None\n    def run(self):\n        self.x.go()\n        self.y[0].go()\n        self.z.go()\nC(z=B()).run()"
    ),
    "dataclass inherited": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    x: A\n@dataclasses.dataclass\nclass D(C):\n    x: Other\n"
        "def run(c: C): c.x.go()\nrun(D(Other()))"
    ),
    "cooperative super": (
        "class Root:\n    def go(self, *rest): return A()\nclass L(Root):\n    def go(self, *rest): return super().go()\n"
        "class R(Root):\n    def go(self, *rest): return Other()\nclass D(L, R):\n    def go(self): return super().go()\n"
        "D().go().go()\nL().go().stop()"
    ),
    "super __init__": (
        "class Root:\n    def __init__(self): self.x = A()\nclass L(Root):\n    def __init__(self): super().__init__()\n"
        "class R(Root):\n    def __init__(self):\n        super().__init__()\n        self.x = Other()\nclass D(L, R):\n"
        "    def run(self): self.x.go()\nD().run()"
    ),
    "super twice": (
        "class Root:\n    def make(self): return A()\nclass L(Root):\n    def run(self): super().make().go()\nclass R(Root):\n"
        "    def make(self): return Other()\nclass D(L, R): pass\nD().run()\nL().run()"
    ),
    "super in a diamond of five": (
        "class R(A):\n    def stop(self): pass\nclass L(A):\n    def go(self): pass\nclass D(L, R):\n"
        "    def run(self): self.go(), self.stop()\nclass E(D):\n    def stop(self): super().stop()\n"
        "    def go(self): super(D, self).go()\nE().run()\nE().stop()\nD().run()"
    ),
    "nested classes": (
        "class C:\n    class A:\n        def go(self): return 1\n    def make(self): return A()\n"
        "    def own(self): return self.A()\nclass D(C):\n    class A:\n        def go(self): return 2\nC().make().go()\n"
        "D().own().go()\nC.A().go()"
    ),
    "nested class of a base": (
        "class C:\n    class Meta(A): pass\n    def run(self): self.Meta().go()\nclass D(C):\n    class Meta(C.Meta):\n"
        "        def go(self): return Other()\nD().run()"
    ),
    "module __getattr__ of an import": (
        "import m\ndef __getattr__(name):\n    if name == 'late': return two\n    raise AttributeError(name)\nfrom m import late\n"
        "late().go()\nm.late().go()"
    ),
    "conditional import in a function": (
        "def f():\n    try: from nowhere import A\n    except ImportError: from m import Other as A\n    A().go()\nf()"
    ),
    "class decorator that adds": "def deco(c):\n    c.go = Other.go\n    return c\n@deco\nclass C(A):\n    def go(self): return 1\nC().go()",
    "async with and for": (
        "import asyncio\nclass C:\n    async def __aenter__(self): return Other()\n    async def __aexit__(self, *rest): pass\n"
        "    def __aiter__(self): return self\n    async def __anext__(self): raise StopAsyncIteration\nasync def run():\n"
        "    async with C() as c: c.go()\n    async for x in C(): x.go()\n    return A()\nasync def main(): (await run()).go()\n"
        "asyncio.run(main())"
    ),
    "async overridden by sync": (
        "import asyncio\nclass C:\n    async def f(self): return A()\n    async def run(self):\n        x = self.f()\n"
        "        x = await x\n        x.go()\nclass D(C):\n    def f(self): return g()\nasync def g(): return Other()\n"
        "asyncio.run(D().run())"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_known_is_what_runs(tmp_path, monkeypatch, name):
    write(tmp_path, {"m.py": BASE + PROGRAMS[name]})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "m", raising=False)
    import builtins

    monkeypatch.setattr(builtins, "sorted", sorted)
    rows = watched(f"{tmp_path}/", lambda: importlib.import_module("m"))
    sys.modules.pop("m", None)
    monkeypatch.undo()
    file = str(tmp_path / "m.py")
    calls = calls_of(file)
    reached, asked = {}, Asked(tmp_path)
    for _, place, (callee, above) in rows:
        if tuple(place) in calls:
            word, line, column = calls[tuple(place)]
            if callee in asked.repository.entities and callee.endswith(f".{word}"):
                named = {(use.line, use.column) for use in asked.uses(callee, infer=False)}
                assert (line, column) in named, f"line {line - BASE.count(chr(10))}: no use of {callee}, which ran"
            names = {word, callee.rpartition(".")[2]}
            right = {callee, *above, *(f"{one}.{name}" for one in above for name in names)}
            if (
                callee.startswith("namedtuple_") or ".<locals>.inner" in callee
            ):  # made by the library; wraps and calls it
                right |= {"m.N", "m.f"}
            reached.setdefault((line, column, word), set()).update(right)
    answers, _, _ = resolver(tmp_path)
    assert truth(rows, {file: calls}) or reached
    for (line, column, word), right in reached.items():
        known = answers((file, line, word), column)
        assert known <= right, f"line {line - BASE.count(chr(10))}: {known} is called known, {right} ran"
