"""Requests that could make two readers of one connection disagree, and odd ones that are right."""

from __future__ import annotations

NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
END = b"0\r\n\r\n"


def post(*lines: bytes, body: bytes = b"", host: bytes = b"Host: x\r\n") -> bytes:
    """A POST with these header lines, each with its own line end."""
    return b"POST /first HTTP/1.1\r\n" + host + b"".join(lines) + b"\r\n" + body


def get(line: bytes = b"GET /first HTTP/1.1\r\n", *lines: bytes) -> bytes:
    return line + b"".join(lines or (b"Host: x\r\n",)) + b"\r\n"


# Each is answered with one error, after which the connection is closed and nothing else is read.
REFUSED: dict[str, bytes] = {
    # Two statements of where the body ends.
    "length and chunks": post(b"Content-Length: 5\r\n", CHUNKED, body=END),
    "chunks and length": post(CHUNKED, b"Content-Length: 5\r\n", body=END),
    "two lengths": post(b"Content-Length: 1\r\nContent-Length: 2\r\n", body=b"ab"),
    "the same length twice": post(b"Content-Length: 1\r\nContent-Length: 1\r\n", body=b"a"),
    "a list of lengths": post(b"Content-Length: 1, 1\r\n", body=b"a"),
    "a length with a sign": post(b"Content-Length: +1\r\n", body=b"a"),
    "a negative length": post(b"Content-Length: -1\r\n", body=b"a"),
    "a length in hex": post(b"Content-Length: 0x1\r\n", body=b"a"),
    "a length with an underscore": post(b"Content-Length: 1_0\r\n", body=b"0123456789"),
    "an empty length": post(b"Content-Length:\r\n"),
    "a length in two words": post(b"Content-Length: 1 2\r\n", body=b"a"),
    "a length beyond 64 bits": post(b"Content-Length: 18446744073709551617\r\n", body=b"a"),
    "a length in the trailers": post(CHUNKED, body=b"1\r\na\r\n0\r\nContent-Length: 5\r\n\r\n"),
    "chunks in the trailers": post(CHUNKED, body=b"1\r\na\r\n0\r\n" + CHUNKED + b"\r\n"),
    # Transfer codings.
    "gzip and chunked": post(b"Transfer-Encoding: gzip, chunked\r\n", body=END),
    "chunked twice in a list": post(b"Transfer-Encoding: chunked, chunked\r\n", body=END),
    "chunked twice": post(CHUNKED, CHUNKED, body=END),
    "chunked and identity in a list": post(b"Transfer-Encoding: chunked, identity\r\n", body=END),
    "identity and chunked in a list": post(b"Transfer-Encoding: identity, chunked\r\n", body=END),
    "chunked and identity": post(CHUNKED, b"Transfer-Encoding: identity\r\n", body=END),
    "identity": post(b"Transfer-Encoding: identity\r\n", body=END),
    "an unknown coding": post(b"Transfer-Encoding: xchunked\r\n", body=END),
    "chunked with a parameter": post(b"Transfer-Encoding: chunked;x=1\r\n", body=END),
    "chunked in quotes": post(b'Transfer-Encoding: "chunked"\r\n', body=END),
    "an empty coding": post(b"Transfer-Encoding:\r\n"),
    "an empty coding and a length": post(b"Transfer-Encoding:\r\nContent-Length: 1\r\n", body=b"a"),
    "a comma before chunked": post(b"Transfer-Encoding: ,chunked\r\n", body=END),
    "a comma after chunked": post(b"Transfer-Encoding: chunked,\r\n", body=END),
    "a vertical tab before chunked": post(b"Transfer-Encoding: \x0bchunked\r\n", body=END),
    "a form feed after chunked": post(b"Transfer-Encoding: chunked\x0c\r\n", body=END),
    "a tab after chunked": post(b"Transfer-Encoding: chunked\t\r\n", body=END),
    "chunks in HTTP/1.0": post(CHUNKED, body=END).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "kept chunks in HTTP/1.0": post(CHUNKED, b"Connection: keep-alive\r\n", body=END).replace(
        b"HTTP/1.1", b"HTTP/1.0"
    ),
    # Lines.
    "a folded line": get(b"GET /first HTTP/1.1\r\n", b"Host: x\r\n", b"A: b\r\n c\r\n"),
    "a line folded by a tab": get(b"GET /first HTTP/1.1\r\n", b"Host: x\r\n", b"A: b\r\n\tc\r\n"),
    "a folded coding": post(b"Transfer-Encoding:\r\n chunked\r\n", body=END),
    "a folded length": post(b"Content-Length:\r\n 1\r\n", body=b"a"),
    "a folded first line": b"GET /first HTTP/1.1\r\n Host: x\r\n\r\n",
    "bare LF": b"GET /first HTTP/1.1\nHost: x\n\n",
    "bare LF after a header": b"GET /first HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "bare LF at the end": b"GET /first HTTP/1.1\r\nHost: x\r\n\n",
    "LF before the end": b"GET /first HTTP/1.1\r\nHost: x\n\r\n",
    "bare CR in a value": get(b"GET /first HTTP/1.1\r\n", b"Host: x\r\n", b"A: b\rc\r\n"),
    "bare CR between lines": b"GET /first HTTP/1.1\rHost: x\r\r",
    "bare CR before a coding": post(b"A: b\r" + CHUNKED, body=END),
    "CR CR LF": b"GET /first HTTP/1.1\r\nHost: x\r\r\n\r\n",
    "LF in a name": post(b"A\nTransfer-Encoding: chunked\r\n", body=END),
    # Names and values.
    "a space before the colon": post(b"Transfer-Encoding : chunked\r\n", body=END),
    "a tab before the colon": post(b"Transfer-Encoding\t: chunked\r\n", body=END),
    "a space before a name": post(b" Content-Length: 1\r\n", body=b"a"),
    "a space in a name": post(b"Content Length: 1\r\n", body=b"a"),
    "NUL in a value": post(b"A: b\0c\r\n"),
    "NUL in a name": post(b"A\0: b\r\n"),
    "NUL before chunked": post(b"Transfer-Encoding: \0chunked\r\n", body=END),
    "a control character": post(b"A: b\x01c\r\n"),
    "DEL in a value": post(b"A: b\x7fc\r\n"),
    "a name beyond ASCII": post(b"A\xff: b\r\n"),
    "no colon": post(b"Content-Length 1\r\n", body=b"a"),
    "an empty name": post(b": 1\r\n"),
    # Hosts.
    "no host": post(host=b""),
    "two hosts": post(b"Host: y\r\n"),
    "the same host twice": post(b"Host: x\r\n"),
    "a list of hosts": post(host=b"Host: x, y\r\n"),
    "an absolute target and two hosts": get(
        b"GET http://y/first HTTP/1.1\r\n", b"Host: x\r\n", b"Host: y\r\n"
    ),
    "an absolute target without a host": get(b"GET http://y/first HTTP/1.1\r\n", b"A: b\r\n"),
    "a host with a path": post(host=b"Host: x/y\r\n"),
    "a host with a user": post(host=b"Host: a@x\r\n"),
    "a host in two words": post(host=b"Host: x y\r\n"),
    "two hosts in HTTP/1.0": get(b"GET /first HTTP/1.0\r\n", b"Host: x\r\n", b"Host: y\r\n"),
    # Request lines.
    "HTTP/1.2": get(b"GET /first HTTP/1.2\r\n"),
    "HTTP/2.0": get(b"GET /first HTTP/2.0\r\n"),
    "HTTP/0.9": get(b"GET /first HTTP/0.9\r\n"),
    "HTTP/1.10": get(b"GET /first HTTP/1.10\r\n"),
    "no version": b"GET /first\r\n\r\n",
    "no version and a header": b"GET /first\r\nHost: x\r\n\r\n",
    "no target": b"GET HTTP/1.1\r\nHost: x\r\n\r\n",
    "lower-case http": get(b"GET /first http/1.1\r\n"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tab in the request line": get(b"GET\t/first HTTP/1.1\r\n"),
    "a space after the version": get(b"GET /first HTTP/1.1 \r\n"),
    "a lower-case method": get(b"get /first HTTP/1.1\r\n"),
    "an unknown method": get(b"FETCH /first HTTP/1.1\r\n"),
    "NUL in the target": get(b"GET /\0first HTTP/1.1\r\n"),
    "a target beyond ASCII": get(b"GET /\xe4 HTTP/1.1\r\n"),
    "a target with a fragment": get(b"GET /first#a HTTP/1.1\r\n"),
    "a target that is no path": get(b"GET first HTTP/1.1\r\n"),
    "a target of another scheme": get(b"GET ftp://x/first HTTP/1.1\r\n"),
    "a target with a user": get(b"GET http://a@x/first HTTP/1.1\r\n"),
    "an asterisk": get(b"GET * HTTP/1.1\r\n"),
    "CONNECT": get(b"CONNECT x:1 HTTP/1.1\r\n"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    # Chunks.
    "LF after a size": post(CHUNKED, body=b"1\na\r\n" + END),
    "LF after a chunk": post(CHUNKED, body=b"1\r\na\n" + END),
    "no line end after a chunk": post(CHUNKED, body=b"1\r\na" + END),
    "other bytes after a chunk": post(CHUNKED, body=b"1\r\naXX" + END),
    "a size with 0x": post(CHUNKED, body=b"0x1\r\na\r\n" + END),
    "a size with a sign": post(CHUNKED, body=b"+1\r\na\r\n" + END),
    "a size with an underscore": post(CHUNKED, body=b"1_0\r\n0123456789abcdef\r\n" + END),
    "a size in words": post(CHUNKED, body=b"one\r\na\r\n" + END),
    "a negative size": post(CHUNKED, body=b"-1\r\na\r\n" + END),
    "a space after a size": post(CHUNKED, body=b"1 \r\na\r\n" + END),
    "a space before a size": post(CHUNKED, body=b" 1\r\na\r\n" + END),
    "a size beyond 64 bits": post(CHUNKED, body=b"10000000000000001\r\na\r\n" + END),
    "no size": post(CHUNKED, body=b"\r\na\r\n" + END),
    "an extension and no size": post(CHUNKED, body=b";\r\n" + END),
    "LF in an extension": post(CHUNKED, body=b"1;a\nb\r\na\r\n" + END),
    "CR in an extension": post(CHUNKED, body=b"1;a\rb\r\na\r\n" + END),
    "LF after the last chunk": post(CHUNKED, body=b"1\r\na\r\n0\r\n\n"),
    "LF after the last size": post(CHUNKED, body=b"1\r\na\r\n0\n\r\n"),
    "a folded trailer": post(CHUNKED, body=b"1\r\na\r\n0\r\nA: b\r\n c\r\n\r\n"),
}

# Larger than a server takes. Each is answered with one error, as above.
MUCH = b"x" * 150_000
ENDLESS: dict[str, bytes] = {
    "a long target": get(b"GET /" + MUCH + b" HTTP/1.1\r\n"),
    "a long method": MUCH + b" /first HTTP/1.1\r\n",
    "a long value": post(b"A: " + MUCH + b"\r\n"),
    "a long name": post(MUCH + b": a\r\n"),
    "many fields": post(*(b"A%d: b\r\n" % number for number in range(20_000))),
    "a long extension": post(CHUNKED, body=b"1;" + MUCH + b"\r\na\r\n" + END),
    "a long extension in pieces": post(CHUNKED, body=b"1" + b";a=b" * 40_000 + b"\r\na\r\n" + END),
    "long trailers": post(CHUNKED, body=b"1\r\na\r\n0\r\nA: " + MUCH + b"\r\n\r\n"),
    "a long size": post(CHUNKED, body=b"0" * 150_000 + b"1\r\na\r\n" + END),
}

# Odd, and right: method, path and body of each. The next request on the connection is answered.
TAKEN: dict[str, tuple[bytes, str, str, bytes]] = {
    "a length with zeros": (post(b"Content-Length: 0001\r\n", body=b"a"), "POST", "/first", b"a"),
    "CHUNKED": (post(b"Transfer-Encoding: CHUNKED\r\n", body=END), "POST", "/first", b""),
    "spaces around chunked": (
        post(b"Transfer-Encoding:   chunked  \r\n", body=b"1\r\na\r\n" + END),
        *("POST", "/first", b"a"),
    ),
    "a GET with a body": (
        get(b"GET /first HTTP/1.1\r\n", b"Host: x\r\n", b"Content-Length: 2\r\n") + b"ab",
        *("GET", "/first", b"ab"),
    ),
    "extensions of chunks": (
        post(CHUNKED, body=b'1;a=b\r\na\r\n1;c="d"\r\nb\r\n' + END),
        *("POST", "/first", b"ab"),
    ),
    "sizes with zeros": (
        post(CHUNKED, body=b"0001\r\na\r\n000\r\n\r\n"),
        *("POST", "/first", b"a"),
    ),
    "trailers": (
        post(CHUNKED, body=b"1\r\na\r\n0\r\nHost: y\r\nX-Sum: 1\r\n\r\n"),
        *("POST", "/first", b"a"),
    ),
    "an underscore in a name": (
        post(b"Transfer_Encoding: chunked\r\nContent-Length: 1\r\n", body=b"a"),
        *("POST", "/first", b"a"),
    ),
    "an empty host": (get(b"GET /first HTTP/1.1\r\n", b"Host:\r\n"), "GET", "/first", b""),
    "an IPv6 host": (get(b"GET /first HTTP/1.1\r\n", b"Host: [::1]:80\r\n"), "GET", "/first", b""),
    "an absolute target": (get(b"GET http://y:80/a?b HTTP/1.1\r\n"), "GET", "/a", b""),
    "an absolute target without a path": (get(b"GET http://y?b HTTP/1.1\r\n"), "GET", "/", b""),
    "OPTIONS *": (get(b"OPTIONS * HTTP/1.1\r\n"), "OPTIONS", "*", b""),
    "an escaped path": (get(b"GET /a%20b%2Fc%C3%A4 HTTP/1.1\r\n"), "GET", "/a b/c\u00e4", b""),
    "a broken escape": (get(b"GET /a%2 HTTP/1.1\r\n"), "GET", "/a%2", b""),
    "an empty line before": (b"\r\n" + get(), "GET", "/first", b""),
    "a value beyond ASCII": (
        get(b"GET /first HTTP/1.1\r\n", b"Host: x\r\n", b"A: \xff\r\n"),
        *("GET", "/first", b""),
    ),
    "an offer of another protocol": (
        get(
            b"GET /first HTTP/1.1\r\n",
            b"Host: x\r\n",
            b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
        ),
        *("GET", "/first", b""),
    ),
    "an offer with a body": (
        post(b"Connection: Upgrade\r\nUpgrade: x\r\nContent-Length: 1\r\n", body=b"a"),
        *("POST", "/first", b"a"),
    ),
    "an offer with chunks": (
        post(b"Connection: Upgrade\r\nUpgrade: x\r\n" + CHUNKED, body=b"1\r\na\r\n" + END),
        *("POST", "/first", b"a"),
    ),
    "a request in the body of an offer": (
        post(b"Connection: Upgrade\r\nUpgrade: x\r\nContent-Length: %d\r\n" % len(NEXT), body=NEXT),
        *("POST", "/first", NEXT),
    ),
    "HTTP/1.0 that is kept": (
        get(b"GET /first HTTP/1.0\r\n", b"Connection: keep-alive\r\n"),
        *("GET", "/first", b""),
    ),
}
