"""Every example of the README and of docs/ runs, and prints what its page says it prints.

A page's blocks share one fresh folder, in which `examples/` is that of the repository.

  ```console   lines that begin with `$ ` are commands, the lines after one are its output, stderr
               first mixed in as on a terminal. A line that ends in a backslash goes on. A command
               that ends in ` &` runs until the page ends; its output is its first line.
  ```python    is executed; a ```text block right after it is its output.
  ```json, ```jsonl, ```toml   are parsed.
  ```text, ```csv, ```markdown and fences without a language are only for the reader.

An HTML comment on the line before a block changes that:

  <!-- not run: REASON -->   the block is left out
  <!-- file: NAME -->        the block is written into the folder under that name; not executed
  <!-- figures vary -->      every number in its output is compared as <number>

Figures that always vary are compared as placeholders, see VARYING: numbers before a unit of time or
a rate (`0.4 s`, `12.3/s`, `3 m 05 s`), calls in flight, latencies, checksums, ports, times of day.
Ports 8000 to 8009 in a page stand for ones that are free.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import click
import pytest

from redline.cli import program
from redline.job.settings import Keywords
from redline.job.work import PARAMETERS
from support.starting import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Its commands import PyTorch one after the other.
SLOW = ROOT / "docs" / "engine.md"
LANGUAGES = ("console", "python", "json", "jsonl", "toml", "text", "csv", "markdown", "")
LONGEST_COMMAND_S = 60

VARYING = (
    (r'"latency_s": ?[\d.e-]+', '"latency_s":<number>'),
    (r'"created": ?\d+', '"created":<number>'),
    (r'"crc": ?"[0-9a-f]{8}"', '"crc":"<crc>"'),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
    (r"process \d+ since [\d:]+", "process <number> since <time>"),
    (r"\d[\d,]*(?:\.\d+)?(?=(?: rows| tokens)?/s\b)", "<number>"),
    (r"(?:under )?\d[\d,]*(?:\.\d+)?(?= (?:ms|s|m|h|d)\b)", "<number>"),
    (r"at most [\d,]+ in flight", "at most <number> in flight"),
)
ANY_FIGURE = (r"\d[\d,]*(?:\.\d+)?", "<number>")
# A user's own key, endpoint or proxy must not reach an example.
PRIVATE = ("OPENAI_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy")


@dataclass(frozen=True)
class Block:
    """One fenced block. mark: the comment before it, without its brackets."""

    language: str
    mark: str
    lines: tuple[str, ...]
    line: int

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


@dataclass
class Command:
    """One command of a console block and the output that the page shows for it."""

    text: str
    output: list[str] = field(default_factory=list)


def blocks_of(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.splitlines()
    number, mark = 0, ""
    while number < len(lines):
        line = lines[number]
        if line.startswith("```"):
            end = lines.index("```", number + 1)
            yield Block(line[3:].strip(), mark, tuple(lines[number + 1 : end]), number + 1)
            number = end
            mark = ""
        elif line.strip():
            comment = re.fullmatch(r"<!-- (.*) -->", line)
            mark = comment[1] if comment else ""
        number += 1


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block."""
    commands: list[Command] = []
    goes_on = False
    for line in block.lines:
        if goes_on:
            commands[-1].text += f"\n{line}"
        elif line.startswith("$ "):
            commands.append(Command(line[2:]))
        else:
            commands[-1].output.append(line)
        goes_on = line.endswith("\\") and (goes_on or line.startswith("$ "))
    return commands


def normal(text: str, *, figures_vary: bool = False) -> str:
    """The text with placeholders for what varies from run to run."""
    for pattern, placeholder in (*VARYING, *((ANY_FIGURE,) if figures_vary else ())):
        text = re.sub(pattern, placeholder, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


class Story:
    """Runs the blocks of one page, in order, in one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._status = 0
        self._ports = {f"800{digit}": str(free_port()) for digit in range(10)}
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith(PRIVATE)
        }
        tools = Path(sys.executable).parent
        self._environment.update(
            PATH=f"{tools}{os.pathsep}{os.environ['PATH']}", COLUMNS="80", TERM="dumb", NO_COLOR="1"
        )

    def tell(self, page: str) -> None:
        """Runs the page. Raises AssertionError where an example is not true."""
        blocks = list(blocks_of(page))
        for block, following in zip_longest(blocks, blocks[1:]):
            assert block.language in LANGUAGES, f"line {block.line}: {block.language} is not known"
            if block.mark.startswith("not run: "):
                continue
            if block.mark.startswith("file: "):
                (self.folder / block.mark[6:]).write_text(self._own(block.text))
            elif block.language == "console":
                self._type(block)
            elif block.language == "python":
                is_output = following is not None and following.language == "text"
                self._execute(block, following if is_output else None)
            _parse(block)

    def _type(self, block: Block) -> None:
        for command in commands_of(block):
            is_background = command.text.endswith(" &")
            shown = self._start(command) if is_background else self._run(command)
            _compare(shown, "\n".join(command.output), block, command.text)

    def _run(self, command: Command) -> str:
        # The status of the command before, for `echo $?`.
        script = f"(exit {self._status})\n{self._own(command.text)}"
        done = self._finished(["bash", "-c", script])
        self._status = done.returncode
        return done.stdout

    def _start(self, command: Command) -> str:
        """The first line of a command that goes on in the background."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {self._own(command.text).removesuffix(' &')}"],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._stack.callback(_end, process)
        assert process.stdout is not None
        return process.stdout.readline()

    def _execute(self, block: Block, output: Block | None) -> None:
        script = self.folder / "example.py"
        script.write_text(self._own(block.text))
        done = self._finished([sys.executable, "-W", "error", str(script)])
        assert done.returncode == 0, f"line {block.line}: {done.stdout}"
        if output is not None:
            _compare(done.stdout, output.text, output, "the example above")

    def _finished(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_COMMAND_S,
            check=False,
        )

    def _own(self, text: str) -> str:
        return re.sub(r"(?<=[: =])800\d\b", lambda port: self._ports[port[0]], text)


def _parse(block: Block) -> None:
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "jsonl":
        for line in block.lines:
            json.loads(line)
    elif block.language == "toml":
        tomllib.loads(block.text)


def _compare(found: str, shown: str, block: Block, command: str) -> None:
    varies = block.mark == "figures vary"
    expected = normal(shown, figures_vary=varies)
    actual = normal(found, figures_vary=varies)
    assert actual == expected, f"line {block.line}: {command} printed:\n{found}"


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LONGEST_COMMAND_S)


def tell(page: str, folder: Path) -> None:
    """Runs the examples of a page in `folder`."""
    with ExitStack() as stack:
        Story(folder, stack).tell(page)


def test_what_examples_import_is_exported_so_that_type_checkers_accept_it() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page.read_text())]
    texts = [block.text for block in blocks if block.language == "python"]
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("redline."):
            module = importlib.import_module(node.module or "")
            exported = getattr(module, "__all__", ())
            assert {name.name for name in node.names} <= {*exported}, module.__name__


# A page starts programs one after the other, of which some import torch.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page == SLOW else ()) for page in PAGES],
    ids=[str(page.relative_to(ROOT)) for page in PAGES],
)
def test_examples(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if page == SLOW:
        pytest.importorskip("torch")
        from support.engine_models import near_draft, random_model

        # In place of the models that the page trains first, which takes minutes.
        models = request.getfixturevalue("models_folder")
        shutil.copytree(random_model("llama", models), tmp_path / "tiny" / "target")
        shutil.copytree(near_draft("llama", models), tmp_path / "tiny" / "draft")
    tell(page.read_text("utf-8"), tmp_path)


FALSE_PAGES = {
    "output": "```console\n$ echo one\ntwo\n```\n",
    "missing output": "```console\n$ echo one\n```\n",
    "status": "```console\n$ false\n$ echo $?\n0\n```\n",
    "plain figure": "```console\n$ echo 3 rows\n4 rows\n```\n",
    "python": "```python\nimport no_such_module\n```\n",
    "python output": "```python\nprint(1)\n```\n\n```text\n2\n```\n",
    "python warning": "```python\nimport warnings\nwarnings.warn('x')\n```\n",
    "json": '```json\n{"a": }\n```\n',
    "toml": "```toml\na = \n```\n",
    "background": "```console\n$ echo one &\ntwo\n```\n",
}


@pytest.mark.parametrize("page", FALSE_PAGES.values(), ids=FALSE_PAGES.keys())
def test_a_false_example_is_found(page: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, json.JSONDecodeError, tomllib.TOMLDecodeError)):
        tell(page, tmp_path)


TRUE_PAGE = """
<!-- file: greeting.txt -->
```text
hello
```

```console
$ cat greeting.txt; (exit 3)
hello
$ echo $? after 12.5 s at 3/s
3 after 0.4 s at 1,200/s
$ echo \\
  one two
one two
```

<!-- figures vary -->
```console
$ echo 17 rows
3 rows
```

<!-- not run: it would fail -->
```console
$ false | grep x
something
```

```python
from pathlib import Path
print(Path("greeting.txt").read_text(), end="")
```

```text
hello
```
"""


def test_a_true_page_passes(tmp_path: Path) -> None:
    tell(TRUE_PAGE, tmp_path)


def _prose() -> str:
    """The pages that describe what is there; the architecture also tells of plans."""
    return "\n".join(page.read_text("utf-8") for page in PAGES if page.name != "architecture.md")


def _flags() -> set[str]:
    """All long flags of `redline` and its commands."""
    commands: list[click.Command] = [program()]
    for command in commands:
        if isinstance(command, click.Group):
            context = click.Context(command)
            found = (command.get_command(context, name) for name in command.list_commands(context))
            commands += filter(None, found)
    params = [param for command in commands for param in command.params]
    return {"--help", *(flag for param in params for flag in param.opts if flag[:2] == "--")}


def test_every_flag_in_the_pages_exists() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", _prose()))
    # Flags of other programs.
    assert named - {"--foreground", "--instructions", "--times", "--top"} <= _flags()


def test_every_flag_is_in_the_pages() -> None:
    assert _flags() <= set(re.findall(r"--[a-z][a-z-]+", _prose()))


def test_every_parameter_that_is_sent_is_in_its_page() -> None:
    page = (ROOT / "docs" / "rows.md").read_text("utf-8")
    assert set(re.findall(r"`(\w+)`", page)) >= PARAMETERS


def test_every_python_option_is_in_its_page() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    assert set(Keywords.__annotations__) <= set(re.findall(r"`(\w+)`", page))


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
