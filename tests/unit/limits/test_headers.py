"""What servers say about their limits, in the words they use.

Each sample is one that a server sent or its documentation shows; the comment names the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from redline.limits.server import HeaderReader, Stated, processing_s
from support.held import held

NOW_S = 1_767_225_600.25
Case = tuple[str, str, float, list[Stated]]


def sent(text: str) -> CIMultiDictProxy[str]:
    """The header lines as the HTTP client hands them on."""
    pairs = [line.strip().split(": ", 1) for line in text.strip().splitlines()]
    return CIMultiDictProxy(CIMultiDict([(name, value) for name, value in pairs]))


def read(text: str, wall_s: float = NOW_S) -> list[Stated]:
    return nameless(HeaderReader().read(sent(text), wall_s))


def nameless(stated: Sequence[Stated]) -> list[Stated]:
    return [msgspec.structs.replace(each, name="") for each in stated]


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


BY_KIND: list[Case] = [
    (
        # OpenAI's guide to rate limits, table of headers.
        "openai",
        """
        x-ratelimit-limit-requests: 60
        x-ratelimit-limit-tokens: 150000
        x-ratelimit-remaining-requests: 59
        x-ratelimit-remaining-tokens: 149984
        x-ratelimit-reset-requests: 1s
        x-ratelimit-reset-tokens: 6m0s
        """,
        NOW_S,
        [Stated("requests", 60, 59, 1.0), Stated("tokens", 150_000, 149_984, 360.0)],
    ),
    (
        # community.openai.com/t/1268905. The usage-based line repeats the one above it.
        "openai, usage based",
        """
        x-ratelimit-limit-requests: 5000
        x-ratelimit-limit-tokens: 160000
        x-ratelimit-limit-tokens_usage_based: 160000
        x-ratelimit-remaining-requests: 4999
        x-ratelimit-remaining-tokens: 159976
        x-ratelimit-remaining-tokens_usage_based: 159976
        x-ratelimit-reset-requests: 12ms
        x-ratelimit-reset-tokens: 9ms
        x-ratelimit-reset-tokens_usage_based: 9ms
        """,
        NOW_S,
        [Stated("requests", 5000, 4999, 0.012), Stated("tokens", 160_000, 159_976, 0.009)],
    ),
    (
        # OpenAI's guide to rate limits, 2026: a project may have a limit of its own.
        "openai, project",
        """
        x-ratelimit-limit-tokens: 150000
        x-ratelimit-remaining-tokens: 149984
        x-ratelimit-reset-tokens: 6ms
        x-ratelimit-limit-project-tokens: 60000
        x-ratelimit-remaining-project-tokens: 57000
        x-ratelimit-reset-project-tokens: 3s
        """,
        NOW_S,
        [Stated("tokens", 150_000, 149_984, 0.006), Stated("tokens", 60_000, 57_000, 3.0)],
    ),
    (
        # github.com/EvolvingPrograms/oaib/issues/11. Requests remain of a slice of ten seconds.
        "azure, without limits",
        """
        apim-request-id: bb943c68-99ed-46ab-bda9-a5efbdf5897a
        x-ratelimit-remaining-requests: 79
        x-ratelimit-remaining-tokens: 61353
        """,
        NOW_S,
        [Stated("requests", None, 79), Stated("tokens", None, 61_353)],
    ),
    (
        # github.com/openai/openai-dotnet/issues/838: nothing is told.
        "azure, minus one",
        """
        x-ratelimit-limit-tokens: -1
        x-ratelimit-remaining-tokens: -1
        x-ratelimit-reset-tokens: 0
        """,
        NOW_S,
        [],
    ),
    (
        # github.com/openai/openai-python/issues/937: a 429, with one more hyphen than elsewhere.
        "azure, more hyphens",
        """
        x-rate-limit-reset-tokens: 55
        policy-id: DeploymentRatelimit-Token
        """,
        NOW_S,
        [Stated("tokens", None, None, 55.0)],
    ),
    (
        # An Azure AI deployment in 2026: the window is stated, and resets are bare seconds.
        "azure, window",
        """
        x-ratelimit-limit-requests: 5
        x-ratelimit-limit-tokens: 5000
        x-ratelimit-remaining-requests: 4
        x-ratelimit-remaining-tokens: 0
        x-ratelimit-renewalperiod-requests: 60
        x-ratelimit-renewalperiod-tokens: 60
        x-ratelimit-reset-requests: 12
        x-ratelimit-reset-tokens: 0
        x-ratelimit-type: Tokens
        """,
        NOW_S,
        [Stated("requests", 5, 4, 12.0, 60.0), Stated("tokens", 5000, 0, 0.0, 60.0)],
    ),
    (
        # github.com/anthropics/anthropic-sdk-typescript/issues/357
        "anthropic",
        """
        anthropic-ratelimit-requests-limit: 5
        anthropic-ratelimit-requests-remaining: 0
        anthropic-ratelimit-requests-reset: 2024-03-26T20:00:00Z
        anthropic-ratelimit-tokens-limit: 25000
        anthropic-ratelimit-tokens-remaining: 16000
        anthropic-ratelimit-tokens-reset: 2024-03-26T20:00:00Z
        x-should-retry: true
        """,
        at("2024-03-26T19:59:59Z"),
        [
            Stated("requests", 5, 0, 1.0, 60.0, is_assumed=True),
            Stated("tokens", 25_000, 16_000, 1.0, 60.0, is_assumed=True),
        ],
    ),
    (
        # github.com/bespokelabsai/curator/issues/535: the first reset lies in the past.
        "anthropic, output tokens",
        """
        date: Mon, 24 Feb 2025 20:38:03 GMT
        anthropic-ratelimit-requests-limit: 4000
        anthropic-ratelimit-requests-remaining: 3999
        anthropic-ratelimit-requests-reset: 2025-02-24T20:37:51Z
        anthropic-ratelimit-output-tokens-limit: 80000
        anthropic-ratelimit-output-tokens-remaining: 80000
        anthropic-ratelimit-output-tokens-reset: 2025-02-24T20:38:03Z
        """,
        at("2025-02-24T20:38:03Z"),
        [
            Stated("requests", 4000, 3999, 0.0, 60.0, is_assumed=True),
            Stated("output_tokens", 80_000, 80_000, 0.0, 60.0, is_assumed=True),
        ],
    ),
    (
        # github.com/whoz-oss/coday/issues/110
        "anthropic, 429",
        """
        anthropic-ratelimit-input-tokens-limit: 200000
        anthropic-ratelimit-input-tokens-remaining: 0
        anthropic-ratelimit-input-tokens-reset: 2025-06-02T15:15:48Z
        retry-after: 16
        """,
        at("2025-06-02T15:14:45Z"),
        [Stated("input_tokens", 200_000, 0, 63.0, 60.0, is_assumed=True)],
    ),
    (
        # github.com/Pythagora-io/gpt-pilot/issues/862. The requests are those of a day, which the
        # names do not tell.
        "groq",
        """
        retry-after: 2
        x-ratelimit-limit-requests: 14400
        x-ratelimit-limit-tokens: 18000
        x-ratelimit-remaining-requests: 14370
        x-ratelimit-remaining-tokens: 17997
        x-ratelimit-reset-requests: 2m59.56s
        x-ratelimit-reset-tokens: 7.66s
        """,
        NOW_S,
        [Stated("requests", 14_400, 14_370, 179.56), Stated("tokens", 18_000, 17_997, 7.66)],
    ),
    (
        # github.com/mistralai/client-ts/issues/169
        "mistral",
        """
        x-ratelimit-limit-tokens-minute: 5000000
        x-ratelimit-remaining-tokens-minute: 4999911
        x-ratelimit-tokens-query-cost: 52
        x-ratelimit-limit-req-minute: 720
        x-ratelimit-remaining-req-minute: 717
        """,
        NOW_S,
        [
            Stated("tokens", 5_000_000, 4_999_911, None, 60.0),
            Stated("requests", 720, 717, None, 60.0),
        ],
    ),
    (
        # The names of inference-docs.cerebras.ai/support/rate-limits.
        "cerebras",
        """
        x-ratelimit-limit-requests-day: 1000000000
        x-ratelimit-limit-tokens-minute: 1000000000
        x-ratelimit-remaining-requests-day: 999997455
        x-ratelimit-remaining-tokens-minute: 999996889
        x-ratelimit-reset-requests-day: 33011.382867
        x-ratelimit-reset-tokens-minute: 11.382867
        """,
        NOW_S,
        [
            Stated("requests", 1_000_000_000, 999_997_455, 33011.382867, 86_400.0),
            Stated("tokens", 1_000_000_000, 999_996_889, 11.382867, 60.0),
        ],
    ),
    (
        # developer.konghq.com, plugin rate-limiting: the window alone names a request limit.
        "kong",
        """
        X-RateLimit-Limit-Second: 5
        X-RateLimit-Remaining-Second: 4
        X-RateLimit-Limit-Minute: 10
        X-RateLimit-Remaining-Minute: 9
        """,
        NOW_S,
        [Stated("requests", 5, 4, None, 1.0), Stated("requests", 10, 9, None, 60.0)],
    ),
    (
        # github.com/bespokelabsai/curator/issues/239: LiteLLM's own, and what it was told itself.
        "litellm",
        """
        x-ratelimit-limit-requests: 4000
        x-ratelimit-remaining-requests: 3999
        x-ratelimit-limit-tokens: 480000
        x-ratelimit-remaining-tokens: 480000
        llm_provider-anthropic-ratelimit-requests-limit: 4000
        llm_provider-anthropic-ratelimit-requests-remaining: 3999
        llm_provider-anthropic-ratelimit-output-tokens-limit: 80000
        llm_provider-anthropic-ratelimit-output-tokens-remaining: 80000
        """,
        NOW_S,
        [
            Stated("requests", 4000, 3999),
            Stated("tokens", 480_000, 480_000),
            Stated("output_tokens", 80_000, 80_000, None, 60.0, is_assumed=True),
        ],
    ),
    (
        # LiteLLM before a provider that it cannot translate.
        "litellm, passing on",
        """
        llm_provider-x-ratelimit-limit-tokens-prompt: 60000
        llm_provider-x-ratelimit-remaining-tokens-prompt: 59000
        llm_provider-x-ratelimit-limit-tokens-generated: 6000
        """,
        NOW_S,
        [Stated("input_tokens", 60_000, 59_000), Stated("output_tokens", 6000)],
    ),
]

BY_POLICY: list[Case] = [
    (
        # slowapi 0.1.9 at 2/minute, headers_enabled: the moment is one second late.
        "slowapi",
        """
        X-RateLimit-Limit: 2
        X-RateLimit-Remaining: 1
        X-RateLimit-Reset: 1795276501.75
        Retry-After: 60
        """,
        1_795_276_440.75,
        [Stated("requests", 2, 1, 61.0, late_s=1.0)],
    ),
    (
        # docs.syntage.com/guides/api/rate-limiting, as GitHub does it.
        "epoch",
        """
        Date: Sun, 29 Nov 2020 19:21:21 GMT
        X-RateLimit-Limit: 60
        X-RateLimit-Remaining: 56
        X-RateLimit-Reset: 1606678044
        """,
        at("2020-11-29T19:21:21Z"),
        [Stated("requests", 60, 56, 363.0, late_s=1.0)],
    ),
    (
        # OpenRouter's 429: milliseconds since 1970.
        "openrouter",
        """
        x-ratelimit-limit: 50
        x-ratelimit-remaining: 0
        x-ratelimit-reset: 1785082980000
        """,
        1_785_082_950.0,
        [Stated("requests", 50, 0, 30.0, late_s=1.0)],
    ),
    (
        # github.com/uber-go/ratelimit/issues/103
        "rfc 3339",
        """
        X-Rate-Limit-Limit: 30
        X-Rate-Limit-Remaining: 24
        X-Rate-Limit-Reset: 2020-05-18T20:19:00.000Z
        """,
        at("2020-05-18T20:18:30Z"),
        [Stated("requests", 30, 24, 30.0, late_s=1.0)],
    ),
    (
        # Envoy's rate_limit.proto, X-RateLimit-Limit under DRAFT_VERSION_03.
        "envoy",
        """
        x-ratelimit-limit: 10, 10;w=1;name="per-ip", 1000;w=3600
        x-ratelimit-remaining: 9
        x-ratelimit-reset: 1
        """,
        NOW_S,
        [Stated("requests", 10, 9, 1.0, 1.0), Stated("requests", 1000, None, None, 3600.0)],
    ),
    (
        # Lokalise's API behind Envoy: one policy twice.
        "envoy, repeated",
        """
        x-ratelimit-limit: 10, 10;w=1, 10;w=1
        x-ratelimit-remaining: 0
        x-ratelimit-reset: 1
        """,
        NOW_S,
        [Stated("requests", 10, 0, 1.0, 1.0)],
    ),
    (
        # Two policies of one size: a reset in 40 s cannot be that of the second.
        "envoy, same size",
        """
        x-ratelimit-limit: 10, 10;w=1, 10;w=60
        x-ratelimit-remaining: 3
        x-ratelimit-reset: 40
        """,
        NOW_S,
        [Stated("requests", 10, None, None, 1.0), Stated("requests", 10, 3, 40.0, 60.0)],
    ),
    (
        # developer.whoop.com/docs/developing/rate-limiting
        "window spelt out",
        """
        X-RateLimit-Limit: 100, 100;window=60, 10000;window=86400
        X-RateLimit-Remaining: 98
        X-RateLimit-Reset: 3
        """,
        NOW_S,
        [Stated("requests", 100, 98, 3.0, 60.0), Stated("requests", 10_000, None, None, 86_400.0)],
    ),
    (
        # docs.withpersona.com, rate limiting: the draft's first names.
        "ietf 00",
        """
        ratelimit-limit: 300
        ratelimit-remaining: 280
        ratelimit-reset: 53
        """,
        NOW_S,
        [Stated("requests", 300, 280, 53.0)],
    ),
    (
        # github.com/novuhq/docs/pull/718
        "ietf 06",
        """
        RateLimit-Remaining: 219
        RateLimit-Limit: 300
        RateLimit-Reset: 2
        RateLimit-Policy: 300;w=5;burst=330;comment="token bucket";serviceLevel="free"
        """,
        NOW_S,
        [Stated("requests", 300, 219, 2.0, 5.0)],
    ),
    (
        # Slides of the working group at IETF 117, "Draft-07".
        "ietf 07",
        """
        RateLimit-Policy: 100;w=60, 10000;w=86400
        RateLimit: limit=100, remaining=50, reset=30
        """,
        NOW_S,
        [Stated("requests", 100, 50, 30.0, 60.0), Stated("requests", 10_000, None, None, 86_400.0)],
    ),
    (
        # developers.cloudflare.com/fundamentals/api/reference/limits, and the draft's version 08.
        "ietf 08",
        """
        Ratelimit: "default";r=50;t=30
        Ratelimit-Policy: "default";q=100;w=10
        """,
        NOW_S,
        [Stated("requests", 100, 50, 30.0, 10.0)],
    ),
    (
        # express-rate-limit 7.5 with draft-8.
        "ietf 08, with spaces",
        """
        RateLimit: "100-in-15min"; r=99; t=900
        RateLimit-Policy: "100-in-15min"; q=100; w=900; pk=:ZTE0YzVmZDk0=:
        """,
        NOW_S,
        [Stated("requests", 100, 99, 900.0, 900.0)],
    ),
    (
        "ietf 10, units",
        """
        RateLimit: "burst";r=4;t=1, "tpm";t=30;r=1500, "bytes";r=5;t=9
        RateLimit-Policy: "burst";q=10;w=1, "tpm";q=200000;w=60;qu="tokens",
         "day";q=5000;w=86400, "bytes";q=65535;qu="content-bytes"
        """.replace("\n         ", " "),
        NOW_S,
        [
            Stated("requests", 10, 4, 1.0, 1.0),
            Stated("tokens", 200_000, 1500, 30.0, 60.0),
            Stated("requests", 5000, None, None, 86_400.0),
        ],
    ),
    (
        "ietf, the policy alone",
        'RateLimit-Policy: "burst";q=100;w=60,"daily";q=1000;w=86400',
        NOW_S,
        [
            Stated("requests", 100, None, None, 60.0),
            Stated("requests", 1000, None, None, 86_400.0),
        ],
    ),
    (
        # github.com/theopenco/llmgateway/pull/3877 sends both: the same limit is stated once.
        "both",
        """
        X-RateLimit-Limit: 60
        X-RateLimit-Remaining: 59
        X-RateLimit-Reset: 1640995200
        RateLimit-Limit: 60
        RateLimit-Remaining: 59
        RateLimit-Reset: 30
        """,
        NOW_S,
        [Stated("requests", 60, 59, 30.0)],
    ),
    (
        # The same page: a limit of 0 stands for one that is not enforced.
        "zero",
        """
        RateLimit-Limit: 0
        RateLimit-Remaining: 0
        """,
        NOW_S,
        [Stated("requests", None, 0)],
    ),
]


@pytest.mark.parametrize("case", BY_KIND + BY_POLICY, ids=lambda case: case[0])
def test_real_samples(case: Case) -> None:
    _, text, wall_s, stated = case
    assert read(text, wall_s) == stated


def test_openai_and_a_gateway_before_it_are_both_heard() -> None:
    stated = read("x-ratelimit-limit-requests: 500\nRateLimit-Limit: 20\nRateLimit-Reset: 1")
    assert stated == [Stated("requests", 500), Stated("requests", 20, None, 1.0)]


def test_a_name_with_a_comma_in_a_policy_separates_nothing() -> None:
    stated = read('RateLimit-Policy: "a,b;c";q=100;w=60, "d";q=5;w=1')
    assert [each.limit for each in stated] == [100, 5]


# --- what is remembered from reply to reply --------------------------------------------------

PLAIN = "content-type: application/json\nserver: cloudflare"
LIMITED = "x-ratelimit-limit-requests: 60\nx-ratelimit-remaining-requests: 59"


class Name(str):
    """Counts how often names are looked into."""

    __slots__ = ()
    looks = 0

    def lower(self) -> str:
        Name.looks += 1
        return super().lower()


def test_names_that_came_together_before_are_not_looked_into_again() -> None:
    reader = HeaderReader()
    reply = {Name("Content-Type"): "application/json", Name("Server"): "cloudflare"}
    assert tuple(reply) not in reader.silent
    Name.looks = 0
    for _ in range(6400):
        assert reader.read(reply, NOW_S) == ()
        assert tuple(reply) in reader.silent
    assert Name.looks == 2


@pytest.mark.parametrize("text", [LIMITED, "openai-processing-ms: 12", "RateLimit: a"])
def test_a_reply_that_states_something_is_never_silent(text: str) -> None:
    reader = HeaderReader()
    for _ in range(3):
        reader.read(sent(PLAIN), NOW_S)
        reader.read(sent(f"{PLAIN}\n{text}"), NOW_S)
        assert reader.silent == {tuple(sent(PLAIN))}


def test_limits_that_appear_later_are_found() -> None:
    """Many servers state their limits on a 429 only."""
    reader = HeaderReader()
    for _ in range(1000):
        assert reader.read(sent(PLAIN), NOW_S) == ()
    assert nameless(reader.read(sent(PLAIN + "\n" + LIMITED), NOW_S)) == [
        Stated("requests", 60, 59)
    ]
    assert reader.read(sent(PLAIN), NOW_S) == ()
    assert nameless(reader.read(sent("via: x\n" + LIMITED), NOW_S)) == [Stated("requests", 60, 59)]


def test_limits_that_appear_in_a_reply_like_the_others_are_found() -> None:
    """With as many headers, of other names."""
    reader = HeaderReader()
    for _ in range(100):
        assert reader.read(sent(PLAIN), NOW_S) == ()
    assert nameless(reader.read(sent(LIMITED), NOW_S)) == [Stated("requests", 60, 59)]


def test_no_form_is_lost() -> None:
    """A 429 in another form must not hide the form of the other replies."""
    reader = HeaderReader()
    old = sent("X-RateLimit-Limit: 60\nX-RateLimit-Remaining: 59")
    for reply in (old, sent('RateLimit: "a";r=1;t=2'), old):
        stated = reader.read(reply, NOW_S)
    assert nameless(stated) == [Stated("requests", 60, 59)]


def test_the_bookkeeping_is_bounded() -> None:
    reader = HeaderReader()
    for size in range(500):
        reply = {f"x-ratelimit-limit-thing{each}": "1" for each in range(size)}
        assert reader.read(reply, NOW_S) == ()
    assert held(reader) <= 64 * 64


# --- the server's own time -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spent_s"),
    [
        ("openai-processing-ms: 5977", 5.977),  # github.com/openai/openai-node/issues/1477
        ("x-envoy-upstream-service-time: 84", 0.084),
        ("openai-processing-ms: 5977\nx-envoy-upstream-service-time: 6001", 5.977),
        ("OpenAI-Processing-Ms: 0", 0.0),
        ("openai-processing-ms: -3", None),
        ("openai-processing-ms: nan", None),
        ("openai-processing-ms: inf", None),
        ("openai-processing-ms: soon", None),
        ("server: cloudflare", None),
    ],
)
def test_the_server_s_own_time(text: str, spent_s: float | None) -> None:
    assert processing_s(sent(text)) == spent_s


# --- garbage ---------------------------------------------------------------------------------

NAMES = sorted({line.split(": ")[0].strip() for _, text, _, _ in BY_KIND + BY_POLICY for line in text.strip().splitlines()})  # fmt: skip  # noqa: E501
# Bytes that are no UTF-8 arrive as lone surrogates.
ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=60)
NUMBERS = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.floats().map(str),
    st.sampled_from(
        ["٣", "\uff11\uff12", "²", "1_0", "0x10", "9" * 5000, "1e400", "-0", "+5", " 7 ", "Ⅷ"]
    ),
)
NUMBER_LIKE = st.builds("{}{}".format, NUMBERS, st.sampled_from(["", "s", "ms", "m", "h0m", "d"]))
LIST_LIKE = st.text('"0123456789,;=:rtqw limtneags\\.', max_size=80)
DATE_LIKE = st.from_regex(r"\d{4}-?\d\d-?\d\d[T ]?(\d\d:?){0,3}(\.\d{0,9})?(Z|[+-]\d\d:?\d\d)?")
VALUES = st.one_of(ANY_TEXT, NUMBER_LIKE, LIST_LIKE, DATE_LIKE)
WALLS = st.floats(0, 4e9)


def assert_in_range(stated: Stated) -> None:
    assert stated.kind in ("requests", "tokens", "input_tokens", "output_tokens")
    assert stated.limit is None or 1 <= stated.limit <= 10**12
    assert stated.remaining is None or 0 <= stated.remaining <= 10**12
    assert stated.reset_s is None or 0 <= stated.reset_s <= 31 * 86_400
    assert stated.window_s is None or 0 < stated.window_s <= 31 * 86_400
    assert (stated.limit, stated.remaining, stated.reset_s) != (None, None, None)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES) | ANY_TEXT, VALUES, max_size=8), max_size=3),
    WALLS,
)
@example([{"x-ratelimit-limit-tokens": "9" * 5000, "x-ratelimit-reset-tokens": "9" * 5000}], 0.0)
@example([{"x-ratelimit-reset": "9999-12-31T23:59:59-23:59", "x-ratelimit-limit": "1"}], 0.0)
@example([{"RateLimit": '"' * 999 + ";r=", "RateLimit-Policy": ";a=:" * 250}], 0.0)
def test_whatever_a_server_sends_is_read_or_left(
    replies: list[dict[str, str]], wall_s: float
) -> None:
    reader = HeaderReader()
    for reply in replies:
        for stated in reader.read(CIMultiDictProxy(CIMultiDict(reply)), wall_s):
            assert_in_range(stated)
        processing_s(reply)


@settings(deadline=None)
@given(
    st.integers(1, 10**12),
    st.integers(0, 10**12),
    st.integers(0, 31 * 86_400),
    st.sampled_from(["requests", "tokens"]),
)
def test_what_is_written_properly_is_read_back(
    limit: int, left: int, reset_s: int, kind: str
) -> None:
    minutes, seconds = divmod(reset_s, 60)
    text = f"""
    x-ratelimit-limit-{kind}: {limit}
    x-ratelimit-remaining-{kind}: {left}
    x-ratelimit-reset-{kind}: {minutes // 60}h{minutes % 60}m{seconds}s
    """
    assert read(text) == [Stated(kind, limit, left, float(reset_s))]
