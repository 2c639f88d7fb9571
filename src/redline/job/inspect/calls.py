"""Answers by their source: counts and tokens."""

from __future__ import annotations

from redline.apis import read_usage, stated_tokens
from redline.job.inspect.lines import Line
from redline.job.inspect.names import MOST_NAMES, OTHERS

Source = tuple[str, str | None, bool, bool]


class Calls:
    """Answers of one model at one endpoint, all from the cache or none, all batched or none.

    input_tokens, output_tokens: as the usage of the answers states them; unstated: answers without
    a usage. billed: the same tokens as they are priced, see `Usage`; unbilled: answers whose usage
    does not state these.
    """

    def __init__(self, source: Source) -> None:
        self.endpoint, self.model, self.is_cached, self.is_batched = source
        self.answers = self.unstated = self.unbilled = 0
        self.input_tokens = self.output_tokens = 0
        self.billed = (0, 0, 0, 0)

    def add(self, line: Line) -> None:
        """Adds an answer."""
        self.answers += 1
        usage = line.usage
        if usage is None:
            self.unstated += 1
            self.unbilled += 1
            return
        read, written = stated_tokens(usage)
        self.input_tokens += read or 0
        self.output_tokens += written or 0
        found = read_usage(usage, has_output=False)
        if found is None:
            self.unbilled += 1
        else:
            one, two, three, four = self.billed
            self.billed = (one + found[0], two + found[1], three + found[2], four + found[3])


class CallsBySource(dict[Source, Calls]):
    """Calls by endpoint, model, and whether they came from the cache or a batch.

    Servers make up the names of models, and there may be any number of endpoints: beyond 100
    sources, all have the names `others`.
    """

    def __missing__(self, source: Source) -> Calls:
        if len(self) >= MOST_NAMES:
            source = (OTHERS, OTHERS, *source[2:])
            if source in self:
                return self[source]
        self[source] = calls = Calls(source)
        return calls
