"""What servers say of themselves on /metrics, and what is made of nonsense."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.route import ServerFigures, read_metrics

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 7.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-8B"} 3.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-8B",reason="capacity"} 9.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-8B"} 0.42
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3-8B"} 1.2345e+07
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="Qwen/Qwen3-8B"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="Qwen/Qwen3-8B"} 12.0
"""
SGLANG = b"""\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 162.0
# HELP sglang:num_used_tokens The number of used tokens.
# TYPE sglang:num_used_tokens gauge
sglang:num_used_tokens{model_name="meta-llama/Llama-3.1-8B-Instruct"} 123859.0
# HELP sglang:token_usage The token usage.
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2826.0
"""
OLD_VLLM = VLLM.replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
REDLINE = b"redline_requests_running 4\nredline_requests_waiting 0\n"


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (VLLM, ServerFigures(7, 3, 0.42)),
        (OLD_VLLM, ServerFigures(7, 3, 0.42)),
        (SGLANG, ServerFigures(162, 2826, 0.28)),
        (REDLINE, ServerFigures(4, 0, None)),
        (VLLM.replace(b"\n", b"\r\n"), ServerFigures(7, 3, 0.42)),
        # The time of a sample, spaces, and braces and quotes in a label.
        (b"redline_requests_running\t4 1712345678901\nredline_requests_waiting  1\n",
         ServerFigures(4, 1)),
        (b'redline_requests_running{model="a}\\"{b c"} 4\nredline_requests_waiting{} 1',
         ServerFigures(4, 1)),
    ],
)  # fmt: skip
def test_pages_of_servers(page: bytes, found: ServerFigures) -> None:
    assert read_metrics(page) == found


def test_a_server_of_several_engines_has_the_calls_of_all_of_them() -> None:
    other = VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.42", b"0.52")
    assert read_metrics(VLLM + other) == ServerFigures(14, 6, pytest.approx(0.47))


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "-Inf", "1e300", "", "x", "1,000", "0x7"])
def test_a_number_that_cannot_be_true_is_no_figure(value: str) -> None:
    for name in ("running", "waiting"):
        page = REDLINE + f"redline_requests_{name} {value}\n".encode()
        assert read_metrics(page) is None
    page = VLLM.replace(b" 0.42", f" {value}".encode())
    assert read_metrics(page) == ServerFigures(7, 3, None)


@pytest.mark.parametrize(
    "page",
    [b"", b"<!DOCTYPE html><html>redline_requests_running 4</html>", b"redline_requests_running 4",
     b"# redline_requests_running 4\n# redline_requests_waiting 4", b"\x1f\x8b\x08\x00" * 100],
)  # fmt: skip
def test_a_page_of_something_else_has_no_figures(page: bytes) -> None:
    assert read_metrics(page) is None


def test_a_label_that_is_not_closed_has_no_value() -> None:
    page = REDLINE.replace(b"running 4", b"running{ 5")
    assert read_metrics(page) is None


def test_lines_of_another_metric_take_no_place() -> None:
    others = b"redline_requests_running_by_model 1\n" * 1_000
    assert read_metrics(others + REDLINE) == ServerFigures(4, 0)


@given(page=st.binary() | st.lists(st.sampled_from(REDLINE.split(b" "))).map(b" ".join))
def test_no_page_fails(page: bytes) -> None:
    read_metrics(page)


@pytest.mark.parametrize(
    "line",
    [b"x" * 50, b"redline_requests_running 1", b"\nredline_requests_running", b"{{{{\n\n}}}}"],
)
def test_a_huge_page_takes_little_time(line: bytes) -> None:
    page = (line + b"\n") * (4 * 2**20 // len(line))
    since_s = time.process_time()
    read_metrics(page)
    assert time.process_time() - since_s < 0.2
