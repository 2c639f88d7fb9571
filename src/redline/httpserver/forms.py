"""Reads uploads: the parts of a multipart/form-data body (RFC 7578)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from redline.httpserver.exchange import BodyError, Exchange

_MOST_PARTS = 100
# Without a handler, the parser's warnings about clients' data would go to stderr.
logging.getLogger("python_multipart").addHandler(logging.NullHandler())
# The bound on the total size of the fields of a form whose files are passed on.
_MOST_FIELD_BYTES = 64 * 1024


class FormPart(msgspec.Struct):
    """One field or file of a form. filename: "" for a field."""

    name: str
    filename: str
    data: bytearray

    def take(self) -> bytes:
        """Returns the bytes that arrived since the last call."""
        data = bytes(self.data)
        self.data.clear()
        return data


# Takes the part that is a file, and the file's next data.
OnFile = Callable[[FormPart, bytes], Awaitable[None]]


async def read_form(exchange: Exchange, on_file: OnFile | None = None) -> dict[str, FormPart]:
    """Returns the parts by name; of parts with the same name, the last. Raises BodyError.

    The bound of the exchange's body is also the bound of all parts together.
    on_file: awaited with the data of each part that has a filename, as the data arrives; the result
    has such a part without its data. It is called at least once for each such part, even if only
    with b"".
    """
    # Imported here, because the parser imports tempfile and few requests upload anything.
    from python_multipart import MultipartParser
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import parse_options_header

    kind, options = parse_options_header(exchange.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BodyError(415, "a file must be uploaded as multipart/form-data with a boundary")
    form = _Form(hands_on=on_file is not None)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": form.begin,
                "on_header_field": form.add_to_name,
                "on_header_value": form.add_to_value,
                "on_header_end": form.end_header,
                "on_headers_finished": form.end_headers,
                "on_part_data": form.add_data,
                "on_end": form.end,
            },
        )
        while data := await exchange.part():
            parser.write(data)
            if on_file is not None:
                for part in form.files():
                    await on_file(part, part.take())
    except FormParserError as error:
        raise BodyError(400, f"the form could not be read: {error}") from None
    if not form.is_whole:
        raise BodyError(400, "the form is cut short")
    return form.parts


class _Form:
    """Collects the parts that the parser finds. The parser bounds the headers of each part.

    hands_on: whether files are passed on as they arrive; the total size of the fields is then
    bounded.
    """

    def __init__(self, *, hands_on: bool) -> None:
        self.parts: dict[str, FormPart] = {}
        self.is_whole = False
        self._hands_on = hands_on
        self._files: list[FormPart] = []
        self._is_file = False
        self._field_bytes = 0
        self._count = 0
        self._name = self._value = b""
        self._disposition = b""
        self._data = bytearray()

    def begin(self) -> None:
        self._count += 1
        if self._count > _MOST_PARTS:
            raise BodyError(413, f"the form has more than {_MOST_PARTS} parts")
        self._disposition = b""

    def add_to_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def end_headers(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if name is None:
            raise BodyError(400, "a part of the form has no name")
        filename = options.get(b"filename", b"")
        self._data = bytearray()
        text = name.decode("utf-8", "replace")
        part = FormPart(text, filename.decode("utf-8", "replace"), self._data)
        self.parts[text] = part
        self._is_file = b"filename" in options
        if self._is_file and self._hands_on:
            self._files.append(part)

    def add_data(self, data: bytes, start: int, end: int) -> None:
        if self._hands_on and not self._is_file:
            self._field_bytes += end - start
            if self._field_bytes > _MOST_FIELD_BYTES:
                most = f"the fields of the form are longer than {_MOST_FIELD_BYTES:,} bytes"
                raise BodyError(413, most)
        self._data += data[start:end]

    def files(self) -> list[FormPart]:
        """Returns the files that may have new data; the last one may get more data later."""
        found, self._files = self._files, self._files[-1:] if self._is_file else []
        return found

    def end(self) -> None:
        self.is_whole = True
