"""src/redline keeps the rules of its architecture, and each rule finds what it should.

Every rule is also run on a small planted package that breaks it, and on one that comes close and
does not, so that a rule which finds nothing, or everything, fails here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support.architecture_rules import MAX_FUNCTION_LINES, RULES, Finding, Package

ROOT = Path(__file__).parent.parent
EXTRAS = [
    *("pyarrow", "datasets", "zstandard", "redis", "tiktoken", "torch", "fsspec"),
    *("jsonschema", "pydantic", "datasketch", "transformers", "llguidance"),
]

# (rule, "path::name"): the reason. The path is relative to src/redline; the name is the
# function, the module imported, or empty for the whole file. One line each; one that is no
# longer needed fails.
EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "broad_excepts",
        "calls/batching/functions.py::_answers",
    ): "a user's function may raise anything",
    ("broad_excepts", "calls/client/function.py::_call"): "a user's coroutine may raise anything",
    ("broad_excepts", "calls/wire/transport.py::_leave"): "one call's failure must not hold others",
    ("broad_excepts", "httpserver/connection.py::_advance"): "any failure is answered with 500",
    ("broad_excepts", "httpserver/connection.py::_answer_rest"): "any failure is answered with 500",
    ("broad_excepts", "job/work/feed.py::_fill"): "it is raised again after the rows before it",
    ("broad_excepts", "job/work/runner.py::_in_executor"): "a user's function may raise anything",
    ("broad_excepts", "job/work/runner.py::__call__"): "as above, in the executor",
    ("broad_excepts", "job/work/runner.py::next_row"): "a user's iterable may raise anything",
    ("broad_excepts", "job/work/runner.py::_work"): "the row boundary: templates and replies",
    ("broad_excepts", "job/work/runner.py::_elsewhere"): "as above, for rows of batches",
    ("broad_excepts", "sources/iterable.py::_read_all"): "it is raised again where it is read",
    ("broad_excepts", "sources/row.py::plain_form"): "a user's value may raise anything",
    ("broad_excepts", "measure/callers.py::ask"): "a user's function may raise anything",
    ("broad_excepts", "process/loading.py::load_object"): "a user's module may raise anything",
    ("broad_excepts", "process/threads.py::_serve"): "what it raises is its future's",
    ("broad_excepts", "tasks/tag/schema.py::_by_model"): "a user's validator may raise anything",
    ("broad_excepts", "tasks/tag/schema.py::_of_model"): "a user's module may raise anything",
    ("broad_excepts", "engine/step/thread.py::_run"): "nobody may wait for a thread that has ended",
    ("broad_excepts", "engine/step/thread.py::_begin"): "as above, before it is in the scheduler",
    ("broad_excepts", "engine/step/thread.py::_tell"): "as above, where it cannot be told its end",
    ("broad_excepts", "engine/api/prompting.py::_chat_text"): "a template may raise anything",
    (
        "broad_excepts",
        "engine/model/loading.py::reading",
    ): "readers of a model's files raise anything",
    (
        "broad_excepts",
        "engine/parallel/rank.py::_run",
    ): "the coordinator must hear why a rank has ended",
    ("broad_excepts", "cli/app.py::_status"): "the process ends here; a defect gets status 3",
}


Findings = Callable[[str], list[Finding]]


@pytest.fixture(scope="module")
def findings() -> Findings:
    """What a rule finds in src/redline, looked for once."""
    package = Package(ROOT / "src" / "redline")
    return cache(lambda rule: [*RULES[rule](package)])


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_kept(findings: Findings, rule: str) -> None:
    broken = [
        f"src/redline/{found.path}:{found.line}: {found.reason}"
        for found in findings(rule)
        if (rule, f"{found.path}::{found.name}") not in EXCEPTIONS
    ]
    assert not broken, "\n".join([f"{rule!r} is broken:", *broken])


def test_every_exception_is_still_needed(findings: Findings) -> None:
    rules = {rule for rule, _ in EXCEPTIONS}
    needed = {(rule, f"{one.path}::{one.name}") for rule in rules for one in findings(rule)}
    assert set(EXCEPTIONS) <= needed, f"no longer needed: {set(EXCEPTIONS) - needed}"
    assert all(EXCEPTIONS.values()), "an exception gives its reason"


LONG_BODY = "    x = 1\n" * MAX_FUNCTION_LINES
EIGHT = "a, b, c, d, e, f, g, h"

SERVICE = "class Runner:\n    def __init__(self):\n        self.journal = None\n"

# rule: planted files, and where the finding must be. A first line is line 1.
BAD: list[tuple[str, dict[str, str], str]] = [
    ("known_parts", {"magic.py": ""}, "magic.py:1"),
    ("known_parts", {"limits/magic/a.py": ""}, "limits/magic/a.py:1"),
    ("layers", {"limits/a.py": "from redline.journal import journal\n"}, "limits/a.py:1"),
    ("layers", {"limits/a.py": "def f():\n    import redline.calls.http\n"}, "limits/a.py:2"),
    (
        "layers",
        {"calls/a.py": "if TYPE_CHECKING:\n    from redline.job.b import B\n", "job/b.py": ""},
        "calls/a.py:2",
    ),
    ("layers", {"calls/a.py": "from ..job import b\n", "job/b.py": ""}, "calls/a.py:1"),
    ("layers", {"calls/a.py": "x = import_module('redline.job')\n"}, "calls/a.py:1"),
    ("layers", {"calls/a.py": "from redline import Client\n"}, "calls/a.py:1"),
    ("layers", {"route/a.py": "import redline.job\n"}, "route/a.py:1"),
    ("layers", {"errors.py": "import redline.clock\n"}, "errors.py:1"),
    ("layers", {"calls/a.py": "import redline.sim\n"}, "calls/a.py:1"),
    ("layers", {"tasks/a.py": "import redline.sim\n"}, "tasks/a.py:1"),
    ("layers", {"job/a.py": "import redline.testing\n"}, "job/a.py:1"),
    ("layers", {"testing/a.py": "import redline.sim\n"}, "testing/a.py:1"),
    (
        "layers",
        {"limits/rule/a.py": "import redline.limits.wait\n", "limits/wait/__init__.py": ""},
        "limits/rule/a.py:1",
    ),
    (
        "layers",
        {"job/work/a.py": "from redline.job.api import run\n", "job/api.py": "", "job/b.py": ""},
        "job/work/a.py:1",
    ),
    (
        "layers",
        {"engine/a.py": "from redline.engine.api import x\n", "engine/api/__init__.py": ""},
        "engine/a.py:1",
    ),
    (
        "doors",
        {"job/a.py": "from redline.calls.b import B\n", "calls/b.py": "", "calls/__init__.py": ""},
        "job/a.py:1",
    ),
    (
        "doors",
        {"job/a.py": "from redline.calls import b\n", "calls/b.py": "", "calls/__init__.py": ""},
        "job/a.py:1",
    ),
    (
        "doors",
        {"job/work/a.py": "from redline.job.show.b import c\n", "job/show/b.py": ""},
        "job/work/a.py:1",
    ),
    (
        "doors",
        {"calls/a.py": "from redline.calls import b\n", "calls/__init__.py": ""},
        "calls/a.py:1",
    ),
    (
        "shadowed_modules",
        {"job/__init__.py": "from redline.job.b import a\n", "job/a.py": "", "job/b.py": ""},
        "job/__init__.py:1",
    ),
    ("folder_sizes", {f"job/{name}.py": "" for name in "abcdefghijklmno"}, "job/__init__.py:1"),
    (
        "cycles",
        {"job/a.py": "import redline.job.b\n", "job/b.py": "def f():\n    from . import a\n"},
        "job/a.py:1",
    ),
    (
        "cycles",
        {
            "job/__init__.py": "from redline.job.a import x\n",
            "job/a.py": "if TYPE_CHECKING:\n    from redline.job import x\n",
        },
        "job/__init__.py:1",
    ),
    ("heavy_imports", {"job/a.py": "import torch.nn\n"}, "job/a.py:1"),
    ("function_sizes", {"job/a.py": f"async def f():\n{LONG_BODY}"}, "job/a.py:1"),
    ("parameters", {"job/a.py": f"def f({EIGHT}): ...\n"}, "job/a.py:1"),
    ("parameters", {"job/a.py": "def f(a, b, c, /, d, *e, f, g, **h): ...\n"}, "job/a.py:1"),
    ("parameters", {"cli/a.py": f"def f({EIGHT}): ...\n"}, "cli/a.py:1"),
    ("file_names", {"job/utils.py": ""}, "job/utils.py:1"),
    ("file_names", {"job/http_helpers.py": ""}, "job/http_helpers.py:1"),
    ("file_names", {"common/a.py": ""}, "common/a.py:1"),
    (
        "plain_doors",
        {"job/__init__.py": '"""Doc."""\nimport os\nx = os.getcwd()\n'},
        "job/__init__.py:3",
    ),
    ("plain_doors", {"job/__init__.py": "def f(): ...\n"}, "job/__init__.py:1"),
    ("plain_doors", {"job/__init__.py": "__all__ = [n for n in dir()]\n"}, "job/__init__.py:1"),
    ("prints", {"job/a.py": "def f():\n    print(1)\n"}, "job/a.py:2"),
    ("broad_excepts", {"cli/a.py": "try:\n    f()\nexcept:\n    raise\n"}, "cli/a.py:3"),
    ("broad_excepts", {"a.py": "try:\n    f()\nexcept Exception:\n    pass\n"}, "a.py:3"),
    (
        "broad_excepts",
        {"a.py": "try:\n    f()\nexcept (OSError, BaseException):\n    f()\n"},
        "a.py:3",
    ),
    ("broad_excepts", {"a.py": "with suppress(Exception):\n    f()\n"}, "a.py:1"),
    (
        "outside_assignments",
        {"job/a.py": SERVICE, "cli/a.py": "def f(run: Runner):\n    run.journal = 1\n"},
        "cli/a.py:2",
    ),
    (
        "outside_assignments",
        {"job/a.py": SERVICE, "cli/a.py": "def f():\n    made = Runner()\n    made.journal += 1\n"},
        "cli/a.py:3",
    ),
    (
        "outside_assignments",
        {
            "job/a.py": SERVICE,
            "job/b.py": "class B:\n    def __init__(self, a: Runner | None): self._a = a\n"
            "    def f(self):\n        self._a.journal, x = 1, 2\n",
        },
        "job/b.py:4",
    ),
    (
        "outside_assignments",
        {"job/a.py": SERVICE, "cli/a.py": "def f(x):\n    del x.journal\n"},
        "cli/a.py:2",
    ),
    ("todos", {"job/a.py": "x = 1\n# TODO: later\n"}, "job/a.py:2"),
]

# The same rules, on code that comes close and is right.
GOOD: list[tuple[str, dict[str, str]]] = [
    ("known_parts", {"__init__.py": "", "__main__.py": "", "errors.py": "", "sim/a.py": ""}),
    ("known_parts", {"limits/rule/a.py": "", "limits/b.py": ""}),
    ("layers", {"job/a.py": "import redline.calls.http\nfrom redline.limits import Rate\n"}),
    ("layers", {"job/a.py": "from redline import errors\n", "errors.py": "", "__init__.py": ""}),
    ("layers", {"job/a.py": "from . import b\nimport redline.sim\n", "job/b.py": ""}),
    ("layers", {"cli/a.py": "import redline.sim\n", "__init__.py": "import redline.job\n"}),
    ("layers", {"sim/a.py": "import redline.limits\n", "testing/a.py": "import redline.calls\n"}),
    ("layers", {"limits/a.py": "import redlines.job\nimport msgspec\n"}),
    ("layers", {"limits/wait/a.py": "import redline.limits.rule\nimport redline.limits.wait.b\n"}),
    ("layers", {"limits/__init__.py": "from redline.limits.shared import Ledger\n"}),
    (
        "doors",
        {
            "calls/__init__.py": "from redline.calls import c\nfrom redline.calls.b import B\n",
            "calls/b.py": "import redline.calls.d\n",
            "calls/c.py": "",
            "calls/d/__init__.py": "from redline.calls.d.e import E\n",
            "calls/d/e.py": "from redline.calls.b import B\n",
            "job/a.py": "from redline.calls import B, c\nfrom redline.calls.d import E\n",
            "cli/a.py": "import_module('redline.calls.b')\nfrom redline.errors import X\n",
            "errors.py": "",
        },
    ),
    (
        "shadowed_modules",
        {
            "job/__init__.py": "from redline.job import a\nfrom redline.job.a import f\n",
            "job/a.py": "",
        },
    ),
    ("folder_sizes", {f"job/{name}.py": "" for name in [*"abcdefghijklmn", "__init__"]}),
    ("cycles", {"job/a.py": "import redline.job.b\n", "job/b.py": "import redline.errors\n"}),
    ("cycles", {"job/__init__.py": "from redline.job.a import x\n", "job/a.py": "x = 1\n"}),
    ("heavy_imports", {"engine/a.py": "import torch\n", "job/a.py": "import torchless\n"}),
    (
        "function_sizes",
        {"job/a.py": "@cache\ndef f():\n" + '    """D\n\n    oc."""\n' + LONG_BODY[10:]},
    ),
    ("parameters", {"job/a.py": "class C:\n    def f(self, a, b, c, d, e, f, g): ...\n"}),
    ("file_names", {"job/manage.py": "", "job/commons.py": ""}),
    ("plain_doors", {"job/__init__.py": '"""Doc."""\nfrom a import b\n__all__ = ["b"]\n'}),
    ("prints", {"cli/a.py": "print(1)\n", "job/a.py": "console.print(1)\n"}),
    ("broad_excepts", {"a.py": "try:\n    f()\nexcept BaseException:\n    g()\n    raise\n"}),
    ("broad_excepts", {"a.py": "try:\n    f()\nexcept (OSError, ValueError):\n    pass\n"}),
    ("outside_assignments", {"job/a.py": SERVICE + "def f(run: Runner):\n    run.journal = 1\n"}),
    (
        "outside_assignments",
        {
            "job/a.py": SERVICE,
            "job/b.py": "class Note(Struct):\n    journal: int\n",
            "job/c.py": "def f(note: Note):\n    note.journal = 1\n    x = note.other = 2\n",
        },
    ),
    (
        "outside_assignments",
        {
            "errors.py": "class BadError(Exception):\n    def __init__(self): self.where = ''\n",
            "job/a.py": "def f():\n    try: g()\n    except BadError as e: e.where = 'x'\n",
        },
    ),
    ("todos", {"job/a.py": "# TODO(#12): later\nMASTODON = 1\n"}),
]


def plant(folder: Path, files: dict[str, str]) -> Package:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return Package(folder)


@pytest.mark.parametrize(("rule", "files", "place"), BAD)
def test_a_planted_fault_is_found(
    tmp_path: Path, rule: str, files: dict[str, str], place: str
) -> None:
    findings = list(RULES[rule](plant(tmp_path, files)))
    assert [f"{found.path}:{found.line}" for found in findings] == [place]


@pytest.mark.parametrize(("rule", "files"), GOOD)
def test_what_only_comes_close_is_not_found(
    tmp_path: Path, rule: str, files: dict[str, str]
) -> None:
    assert list(RULES[rule](plant(tmp_path, files))) == []


def test_every_rule_has_a_planted_fault_and_a_near_miss() -> None:
    assert {rule for rule, _, _ in BAD} == set(RULES) == {rule for rule, _ in GOOD}


PROBE = f"""
import sys, threading
import redline
print(redline.__file__)
print([name for name in {EXTRAS!r} if name in sys.modules])
print([thread.name for thread in threading.enumerate() if thread is not threading.main_thread()])
"""


def probe(folder: Path) -> list[str]:
    """Where redline came from, the extras it imported, and the threads it started."""
    reply = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert reply.returncode == 0, reply.stderr
    return reply.stdout.splitlines()


def test_importing_redline_imports_no_extra_and_starts_no_thread() -> None:
    file, extras, threads = probe(ROOT / "src")
    assert file == str(ROOT / "src" / "redline" / "__init__.py")
    assert (extras, threads) == ("[]", "[]")


def test_an_import_that_does_too_much_is_seen(tmp_path: Path) -> None:
    text = (
        "import threading, tiktoken\n"
        "threading.Thread(target=threading.Event().wait, name='started', daemon=True).start()\n"
    )
    plant(tmp_path, {"redline/__init__.py": text, "tiktoken.py": ""})
    assert probe(tmp_path)[1:] == ["['tiktoken']", "['started']"]
