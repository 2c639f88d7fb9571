"""src/redline keeps its house rules, and each rule still finds what it is there for.

Every rule is also run on a small planted package that breaks it, and on one that comes close and
does not, so that a rule which finds nothing, or everything, fails here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from house_rules import MAX_FUNCTION_LINES, RULES, Package

ROOT = Path(__file__).parent.parent
EXTRAS = [
    *("pyarrow", "datasets", "zstandard", "redis", "tiktoken", "torch", "fsspec"),
    *("jsonschema", "pydantic", "datasketch", "transformers", "llguidance"),
]

# (rule, "path::name"): the reason. The path is relative to src/redline; the name is the
# function, the module imported, or empty for the whole file. One line each; one that is no
# longer needed fails.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("broad_excepts", "calls/function.py::_call"): "a user's coroutine may raise anything",
    ("broad_excepts", "run/runner.py::_in_executor"): "a user's function may raise anything",
    ("broad_excepts", "run/runner.py::next_row"): "a user's iterable may raise anything",
    ("broad_excepts", "run/runner.py::_outcome"): "the row boundary: templates and replies",
    ("broad_excepts", "threads.py::_serve"): "what it raises is its future's",
    ("broad_excepts", "tasks/schema.py::_of_model"): "a user's module may raise anything",
    ("broad_excepts", "engine/thread.py::_run"): "nobody may wait for a thread that has ended",
    ("broad_excepts", "engine/thread.py::_begin"): "as above, before it is in the scheduler",
    ("broad_excepts", "engine/thread.py::_tell"): "as above, where it cannot be told its end",
    ("broad_excepts", "engine/backend.py::_has_read"): "told to the caller that waits for it",
    ("broad_excepts", "engine/load.py::reading"): "readers of a model's files raise anything",
    ("broad_excepts", "engine/rank.py::_run"): "the coordinator must hear why a rank has ended",
    ("broad_excepts", "cli/app.py::_status"): "the process ends here; a defect gets status 3",
}


@pytest.fixture(scope="module")
def package() -> Package:
    return Package(ROOT / "src" / "redline")


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_its_rules(package: Package, rule: str) -> None:
    broken = [
        f"src/redline/{found.path}:{found.line}: {found.reason}"
        for found in RULES[rule](package)
        if (rule, f"{found.path}::{found.name}") not in EXCEPTIONS
    ]
    assert not broken, "\n".join([f"house rule {rule!r} is broken:", *broken])


def test_every_exception_is_still_needed(package: Package) -> None:
    rules = {rule for rule, _ in EXCEPTIONS}
    needed = {(r, f"{f.path}::{f.name}") for r in rules for f in RULES[r](package)}
    assert set(EXCEPTIONS) <= needed, f"no longer needed: {set(EXCEPTIONS) - needed}"
    assert all(EXCEPTIONS.values()), "an exception gives its reason"


LONG_BODY = "    x = 1\n" * MAX_FUNCTION_LINES
EIGHT = "a, b, c, d, e, f, g, h"
FLAGS = ", ".join(f"{name}: Annotated[int, Option(help='x')] = 1" for name in "abcdefgh")
COMMAND = "@app.command()\ndef run({}):\n{}"

# rule: planted files, and where the finding must be. A first line is line 1.
BAD: list[tuple[str, dict[str, str], str]] = [
    ("known_parts", {"magic.py": ""}, "magic.py:1"),
    ("floors", {"limits/a.py": "from redline.run import journal\n"}, "limits/a.py:1"),
    ("floors", {"limits/a.py": "def f():\n    import redline.calls.http\n"}, "limits/a.py:2"),
    (
        "floors",
        {"calls/a.py": "if TYPE_CHECKING:\n    from redline.run.b import B\n", "run/b.py": ""},
        "calls/a.py:2",
    ),
    ("floors", {"calls/a.py": "from ..run import b\n", "run/b.py": ""}, "calls/a.py:1"),
    ("floors", {"calls/a.py": "x = import_module('redline.run')\n"}, "calls/a.py:1"),
    ("floors", {"calls/a.py": "from redline import Client\n"}, "calls/a.py:1"),
    ("floors", {"route/a.py": "import redline.run\n"}, "route/a.py:1"),
    ("floors", {"errors.py": "import redline.clock\n"}, "errors.py:1"),
    ("floors", {"calls/a.py": "import redline.sim\n"}, "calls/a.py:1"),
    ("floors", {"run/a.py": "import redline.testing\n"}, "run/a.py:1"),
    ("floors", {"sim/a.py": "import redline.calls\n"}, "sim/a.py:1"),
    ("floors", {"testing/a.py": "import redline.sim\n"}, "testing/a.py:1"),
    ("floors", {"testing/a.py": "import redline.run\n"}, "testing/a.py:1"),
    (
        "cycles",
        {"run/a.py": "import redline.run.b\n", "run/b.py": "def f():\n    from . import a\n"},
        "run/a.py:1",
    ),
    (
        "cycles",
        {
            "run/__init__.py": "from redline.run.a import x\n",
            "run/a.py": "if TYPE_CHECKING:\n    from redline.run import x\n",
        },
        "run/__init__.py:1",
    ),
    ("heavy_imports", {"run/a.py": "import torch.nn\n"}, "run/a.py:1"),
    ("function_sizes", {"run/a.py": f"async def f():\n{LONG_BODY}"}, "run/a.py:1"),
    ("function_sizes", {"cli/a.py": COMMAND.format("", LONG_BODY + "    x = 2\n")}, "cli/a.py:2"),
    ("parameters", {"run/a.py": f"def f({EIGHT}): ...\n"}, "run/a.py:1"),
    ("parameters", {"run/a.py": "def f(a, b, c, /, d, *e, f, g, **h): ...\n"}, "run/a.py:1"),
    ("parameters", {"run/a.py": COMMAND.format(EIGHT, "    ...\n")}, "run/a.py:2"),
    ("parameters", {"cli/a.py": f"def f({EIGHT}): ...\n"}, "cli/a.py:1"),
    ("parameters", {"cli/a.py": f"def f({FLAGS}, i: int = 1): ...\n"}, "cli/a.py:1"),
    ("parameters", {"run/a.py": f"def f({FLAGS}): ...\n"}, "run/a.py:1"),
    ("file_names", {"run/utils.py": ""}, "run/utils.py:1"),
    ("file_names", {"run/http_helpers.py": ""}, "run/http_helpers.py:1"),
    ("file_names", {"common/a.py": ""}, "common/a.py:1"),
    ("doors", {"run/__init__.py": '"""Doc."""\nimport os\nx = os.getcwd()\n'}, "run/__init__.py:3"),
    ("doors", {"run/__init__.py": "def f(): ...\n"}, "run/__init__.py:1"),
    ("doors", {"run/__init__.py": "__all__ = [n for n in dir()]\n"}, "run/__init__.py:1"),
    ("prints", {"run/a.py": "def f():\n    print(1)\n"}, "run/a.py:2"),
    ("broad_excepts", {"cli/a.py": "try:\n    f()\nexcept:\n    raise\n"}, "cli/a.py:3"),
    ("broad_excepts", {"a.py": "try:\n    f()\nexcept Exception:\n    pass\n"}, "a.py:3"),
    (
        "broad_excepts",
        {"a.py": "try:\n    f()\nexcept (OSError, BaseException):\n    f()\n"},
        "a.py:3",
    ),
    ("broad_excepts", {"a.py": "with suppress(Exception):\n    f()\n"}, "a.py:1"),
    ("todos", {"run/a.py": "x = 1\n# TODO: later\n"}, "run/a.py:2"),
]

# The same rules, on code that comes close and is right.
GOOD: list[tuple[str, dict[str, str]]] = [
    ("known_parts", {"__init__.py": "", "__main__.py": "", "errors.py": "", "sim/a.py": ""}),
    ("floors", {"run/a.py": "import redline.calls.http\nfrom redline.limits import Rate\n"}),
    ("floors", {"run/a.py": "from redline import errors\n", "errors.py": "", "__init__.py": ""}),
    ("floors", {"run/a.py": "from . import b\nimport redline.sim\n", "run/b.py": ""}),
    ("floors", {"cli/a.py": "import redline.sim\n", "__init__.py": "import redline.run\n"}),
    ("floors", {"sim/a.py": "import redline.limits\n", "testing/a.py": "import redline.calls\n"}),
    ("floors", {"limits/a.py": "import redlines.run\nimport msgspec\n"}),
    ("cycles", {"run/a.py": "import redline.run.b\n", "run/b.py": "import redline.errors\n"}),
    ("cycles", {"run/__init__.py": "from redline.run.a import x\n", "run/a.py": "x = 1\n"}),
    ("heavy_imports", {"engine/a.py": "import torch\n", "run/a.py": "import torchless\n"}),
    (
        "function_sizes",
        {"run/a.py": "@cache\ndef f():\n" + '    """D\n\n    oc."""\n' + LONG_BODY[10:]},
    ),
    ("function_sizes", {"cli/a.py": COMMAND.format("\n" * 90, "    x = 1\n")}),
    ("parameters", {"run/a.py": "class C:\n    def f(self, a, b, c, d, e, f, g): ...\n"}),
    ("parameters", {"cli/a.py": COMMAND.format(EIGHT, "    ...\n")}),
    ("parameters", {"cli/a.py": f"def f(ctx: click.Context, {FLAGS}): ...\n"}),
    ("file_names", {"run/manage.py": "", "run/commons.py": ""}),
    ("doors", {"run/__init__.py": '"""Doc."""\nfrom a import b\n__all__ = ["b"]\n'}),
    ("prints", {"cli/a.py": "print(1)\n", "run/a.py": "console.print(1)\n"}),
    ("broad_excepts", {"a.py": "try:\n    f()\nexcept BaseException:\n    g()\n    raise\n"}),
    ("broad_excepts", {"a.py": "try:\n    f()\nexcept (OSError, ValueError):\n    pass\n"}),
    ("todos", {"run/a.py": "# TODO(#12): later\nMASTODON = 1\n"}),
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
