"""Requests become token ids and parameters, and what cannot be done is refused by its name."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.engine.api import Asked, Pieces, read_request
from redline.engine.sample import SamplingParams
from redline.errors import Rejected
from support import vocabularies

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOKENIZER = vocabularies.byte_fallback()
VOCABULARY = len(TOKENIZER)
TOKEN_BYTES = Pieces(TOKENIZER).most_bytes
HI = [{"role": "user", "content": "hi"}]


def read(url: str, max_model_len: int = 100, **body: Any) -> Asked:
    return read_request(url, body, TOKENIZER, VOCABULARY, max_model_len, TOKEN_BYTES)


def chat(messages: Any = HI, **body: Any) -> Asked:
    return read(CHAT, messages=messages, **body)


def text(prompt: Any = "hi", **body: Any) -> Asked:
    return read(TEXT, prompt=prompt, **body)


def refusal(url: str, **body: Any) -> Rejected | None:
    try:
        read(url, **body)
    except Rejected as error:
        return error
    return None


def refused(url: str, **body: Any) -> Rejected:
    error = refusal(url, **body)
    assert error is not None
    assert error.status in (None, 404), "without one it is 400, and the client is told the hint"
    return error


def shown(tokens: list[int]) -> str:
    decoded: str = TOKENIZER.decode(tokens, skip_special_tokens=False)
    return decoded


def test_a_conversation_goes_through_the_models_template() -> None:
    asked = chat(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": part} for part in ("a ", "b")]},
            {"role": "assistant", "content": "c", "tool_calls": None, "refusal": None},
            {"role": "user", "content": "d", "name": "Ann"},
        ]
    )
    assert asked.form.is_chat
    [prompt] = asked.prompts
    expected = TOKENIZER.apply_chat_template(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a b"},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d"},
        ],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
    )
    assert prompt == expected
    assert prompt.count(TOKENIZER.bos_token_id) == 1, "the template has written it already"
    assert shown(prompt).endswith("[assistant]")


def test_developer_is_another_name_of_system() -> None:
    assert (
        chat([{"role": "developer", "content": "x"}, *HI]).prompts
        == chat([{"role": "system", "content": "x"}, *HI]).prompts
    )


def test_a_prompt_is_text_or_tokens_or_a_list_of_either() -> None:
    plain = TOKENIZER.encode("hi", add_special_tokens=False)
    assert text("hi").prompts == [[TOKENIZER.bos_token_id, *plain]]
    assert text(["hi", "hi"]).prompts == [[TOKENIZER.bos_token_id, *plain]] * 2
    assert text([5, 6, 7]).prompts == [[5, 6, 7]]
    assert text([[5], [6, 7]]).prompts == [[5], [6, 7]]
    assert text(["hi", [6, 7]]).prompts == [[TOKENIZER.bos_token_id, *plain], [6, 7]]
    assert not text("hi").form.is_chat


EVERYTHING = {
    "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 1,
    "frequency_penalty": -1.5, "repetition_penalty": 1.2, "seed": 11, "n": 2, "ignore_eos": True,
}  # fmt: skip


@pytest.mark.parametrize("url", [CHAT, TEXT])
def test_every_parameter_arrives(url: str) -> None:
    prompt = {"messages": HI} if url == CHAT else {"prompt": "hi"}
    asked = read(
        url,
        **prompt,
        **EVERYTHING,
        stop="END",
        stop_token_ids=[3, 4],
        logit_bias={"5": -100, "6": 2.5},
        max_tokens=9,
        model="m",
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        priority=-3,
        user="someone",
        metadata={"a": "b"},
        service_tier="auto",
    )
    assert asked.params == SamplingParams(
        **EVERYTHING,  # type: ignore[arg-type]
        stop=("END",),
        stop_token_ids=(3, 4),
        logit_bias={5: -100.0, 6: 2.5},
        max_tokens=9,
    )
    usage = asked.form.includes_usage
    assert (asked.params.n, asked.form.model, asked.form.stream, usage) == (2, "m", True, True)
    assert (asked.form.priority, asked.schema) == (-3, None)


def test_null_is_not_given_and_what_asks_for_nothing_is_taken() -> None:
    nothing = dict.fromkeys(["temperature", "tools", "stop", "n", "seed", "logit_bias", "stream"])
    plain = chat()
    assert chat(**nothing, tool_choice="none", modalities=["text"]).params == plain.params
    assert text(echo=False, suffix="", best_of=2, n=2).params.n == 2
    assert (plain.form.stream, plain.form.priority) == (None, 0)
    assert not plain.form.includes_usage
    assert not chat(stream_options={"include_usage": None}).form.includes_usage
    assert plain.params == SamplingParams()


def test_keys_of_a_bias_may_be_numbers() -> None:
    assert chat(logit_bias={5: 1}).params.logit_bias == {5: 1.0}


def test_logprobs_of_both_apis() -> None:
    assert chat().params.logprobs is None
    assert chat(logprobs=False).params.logprobs is None
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).params.logprobs == 20
    assert text(logprobs=5).params.logprobs == 5
    assert text(logprobs=0).params.logprobs == 0
    assert text().params.logprobs is None


def test_a_wanted_form_is_kept_as_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    named = {"name": "x", "schema": schema, "strict": True}
    assert chat(response_format={"type": "text"}).schema is None
    assert chat(response_format={"type": "json_object"}).schema == {"type": "object"}
    assert chat(response_format={"type": "json_schema", "json_schema": named}).schema == schema


def test_what_max_tokens_is_where_it_is_not_given() -> None:
    asked = read(TEXT, max_model_len=10, prompt=[[5], [5, 6, 7]], n=2)
    assert [asked.most_tokens(prompt) for prompt in asked.prompts] == [10, 10]
    asked = read(TEXT, max_model_len=10, prompt=[[5], [5, 6, 7]], max_tokens=4)
    assert [asked.most_tokens(prompt) for prompt in asked.prompts] == [5, 7]


def test_the_newer_name_of_max_tokens() -> None:
    assert chat(max_completion_tokens=7).params.max_tokens == 7


def test_prompt_and_answer_fit_the_model() -> None:
    for size, wanted, fits in [
        (9, None, True),
        (10, None, False),
        (9, 1, True),
        (9, 2, False),
        (4, 6, True),
        (4, 7, False),
    ]:
        body = {"prompt": [5] * size, "max_tokens": wanted}
        error = refusal(TEXT, max_model_len=10, **body)
        assert (error is None) == fits, f"{size} tokens and {wanted} more: {error}"
        if error is None:
            continue
        assert str(size) in error.what
        assert ("9" if wanted is None else str(wanted)) in error.what


def test_the_refusal_of_a_long_prompt() -> None:
    error = refused(TEXT, prompt=["a", [5] * 1200], max_model_len=1024)
    what = "`prompt[1]` has 1,200 tokens, but max_model_len allows at most 1,023"
    assert error.what == what
    assert error.hint == "shorten it, or start the engine with a larger max_model_len"


def test_what_cannot_fit_is_not_read() -> None:
    """Reading takes seconds for each megabyte, and one thread reads for all."""
    read_texts: list[str] = []

    class Reading:
        def encode(self, text: str, **ways: Any) -> list[int]:
            read_texts.append(text)
            tokens: list[int] = TOKENIZER.encode(text, **ways)
            return tokens

    def asked(*prompts: str) -> None:
        body = {"prompt": list(prompts)}
        read_request(TEXT, body, Reading(), VOCABULARY, 10, TOKEN_BYTES)

    most = 10 * TOKEN_BYTES
    for prompts in (["é" * (most // 2 + 1)], ["hi", "x" * (most + 1)], ["x" * most, "hi"]):
        with pytest.raises(Rejected, match=r"`prompt\[\d\]` has .* max_model_len"):
            asked(*prompts)
    assert read_texts == ["hi", "x" * most], "and none after the first that does not fit"


TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"tools": [TOOL]}, "`tools` is not supported"),
        ({"tool_choice": "required"}, "`tool_choice` is not supported"),
        ({"modalities": ["audio"]}, "`modalities` is not supported"),
        ({"reasoning_effort": "high"}, "`reasoning_effort` is not supported"),
        ({"temprature": 1}, "unknown parameter `temprature`"),
        ({"prompt": "hi"}, "unknown parameter `prompt`"),
        ({"temperature": "hot"}, "`temperature`"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": 1.5}, "`top_k`"),
        ({"n": 0}, "`n` is 0"),
        ({"n": True}, "`n`"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "`max_completion_tokens`"),
        ({"seed": 2**65}, "seed"),
        ({"stop": ["a", ""]}, "`stop[1]` is not valid: Expected `str` of length >= 1"),
        ({"stop": ["a"] * 17}, "`stop` is not valid: Expected `array` of length <= 16"),
        ({"stop": "x" * 257}, "`stop[0]` is not valid: Expected `str` of length <= 256"),
        ({"stop": [1]}, "`stop[0]`"),
        ({"stop_token_ids": [VOCABULARY]}, "stop_token_ids"),
        ({"stop_token_ids": [5] * 129}, "`stop_token_ids` is not valid: Expected `array` of len"),
        ({"logit_bias": {"x": 1}}, "`logit_bias`"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {str(VOCABULARY): 1}}, "logit_bias"),
        ({"logprobs": 5}, "`logprobs`"),
        ({"top_logprobs": 5}, "`top_logprobs` is given without `logprobs`"),
        ({"logprobs": True, "top_logprobs": 21}, "`top_logprobs`"),
        ({"stream": "yes"}, "`stream`"),
        ({"stream_options": {"include_usage": 1}}, "`stream_options.include_usage`"),
        ({"priority": "high"}, "`priority`"),
        ({"response_format": {"type": "xml"}}, "`response_format.type`"),
        ({"response_format": {"type": "json_schema"}}, "`response_format.json_schema` is missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "`response_format.json_schema`",
        ),
        ({"messages": []}, "`messages` is empty"),
        ({"messages": None}, "`messages`"),
        ({"messages": "hi"}, "`messages`"),
        ({"messages": ["hi"]}, "`messages[0]`"),
        ({"messages": [{"content": "hi"}]}, "`messages[0]` is not valid: "),
        ({"messages": [*HI, {"role": "tool", "content": "4"}]}, "`messages[1].role` is not valid"),
        ({"messages": [{"role": ["user"], "content": "4"}]}, "`messages[0].role`"),
        ({"messages": [{"role": "user"}]}, "`messages[0]` is not valid: "),
        ({"messages": [{"role": "user", "content": 5}]}, "`messages[0].content` is"),
        (
            {"messages": [*HI, {"role": "assistant", "tool_calls": [TOOL]}]},
            "`messages[1]` is not valid: Object contains unknown field `tool_calls`",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]},
            "`messages[0].content[1].type` is not valid: Invalid enum value 'image_url'",
        ),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "`messages[0].content[0]`"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "a user speaks first"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "`messages` contains a lone surr"),
    ],
)  # fmt: skip
def test_a_chat_that_cannot_be_is_refused_by_name(body: dict[str, Any], what: str) -> None:
    assert what in refused(CHAT, **{"messages": HI, **body}).what


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"echo": True}, "`echo` is not supported"),
        ({"suffix": "end"}, "`suffix` is not supported"),
        ({"best_of": 3}, "`best_of` is not supported"),
        ({"best_of": 3, "n": 2}, "`best_of` is not supported"),
        ({"messages": HI}, "unknown parameter `messages`"),
        ({"logprobs": True}, "`logprobs`"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": None}, "`prompt`"),
        ({"prompt": []}, "`prompt` has 0 items"),
        ({"prompt": ["x"] * 2049}, "`prompt` has 2,049 items"),
        ({"prompt": [[]]}, "`prompt[0]` is empty"),
        ({"prompt": ["a", 5]}, "`prompt` mixes"),
        ({"prompt": [5, VOCABULARY]}, f"`prompt` contains the token id {VOCABULARY}; "),
        ({"prompt": [[5], [-1]]}, "`prompt[1]` contains the token id -1; "),
        ({"prompt": [5, True]}, "`prompt"),
        ({"prompt": {"a": 1}}, "`prompt`"),
        ({"prompt": "\udfff"}, "`prompt` contains a lone surrogate"),
    ],
)
def test_a_completion_that_cannot_be_is_refused_by_name(body: dict[str, Any], what: str) -> None:
    assert what in refused(TEXT, **{"prompt": "hi", **body}).what


def test_an_empty_prompt_needs_a_beginning_of_text() -> None:
    assert text("").prompts == [[TOKENIZER.bos_token_id]]
    with pytest.raises(Rejected, match="`prompt` is empty"):
        read_request(TEXT, {"prompt": ""}, vocabularies.byte_level(), 420, 10, 9)


def test_a_near_name_is_told() -> None:
    assert refused(CHAT, messages=HI, temprature=1).hint == "did you mean temperature?"


def test_other_addresses_and_bodies() -> None:
    for url in ["/v1/embeddings", "/v1/models", ""]:
        error = refused(url, messages=HI)
        assert error.status == 404
        assert "/v1/chat/completions" in error.hint
    assert read("/v1/chat/completions/?x=1", messages=HI).form.is_chat
    for body in [None, [], "x", b"{}"]:
        with pytest.raises(Rejected, match="JSON object"):
            read_request(CHAT, body, TOKENIZER, VOCABULARY, 10, 9)


def test_a_model_without_a_template_has_completions_only() -> None:
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=vocabularies.byte_level().backend_tokenizer)
    with pytest.raises(Rejected, match="the model has no chat template") as caught:
        read_request(CHAT, {"messages": HI}, bare, VOCABULARY, 10, 9)
    assert "/v1/completions" in caught.value.hint


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{{ '{x}'.format() }}"])
def test_whatever_a_template_raises_is_a_refusal(template: str) -> None:
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.chat_template = template
    with pytest.raises(Rejected, match=r"do not fit the model's chat template: ."):
        read_request(CHAT, {"messages": HI}, tokenizer, VOCABULARY, 10, 9)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [*EVERYTHING, "messages", "prompt", "stop", "logit_bias", "max_tokens", "logprobs", "tools",
     "response_format", "stream_options", "top_logprobs", "stop_token_ids", "model", "best_of"]
)  # fmt: skip


@given(url=st.sampled_from([CHAT, TEXT]), extra=st.dictionaries(NAMES, JSON, max_size=3))
@settings(max_examples=100, deadline=None)
def test_any_body_is_read_or_refused(url: str, extra: dict[str, Any]) -> None:
    """Nothing but Rejected comes out, and it says what is wrong."""
    body = {**({"messages": HI} if url == CHAT else {"prompt": "hi"}), **extra}
    error = refusal(url, **body)
    if error is None:
        assert all(0 < len(prompt) < 100 for prompt in read(url, **body).prompts)
    else:
        assert error.status is None
        assert error.what
