"""Reads the text of an input as chunks of bytes: decompressed, and checked to be text.

    blocks of a file, stdin or an object -> decompress gzip or zstd -> skip BOM, refuse binary

Every stage is a generator, so only a few blocks are in memory, regardless of the input's size.
"""

from __future__ import annotations

import importlib
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple, NoReturn

from redline.errors import ConfigError, RedlineError
from redline.sources.blocks import Blocks, CorruptInput
from redline.sources.row import BlockingRows

CHUNK_BYTES = 1024 * 1024
SNIFF_BYTES = 8192
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# A zstd file may begin with a skippable frame (RFC 8878, 3.1.2); pzstd writes such files.
_ZSTD_SKIPPABLE = tuple(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16))
_UTF8_BOM = b"\xef\xbb\xbf"
# UTF-32 comes first: its little-endian BOM begins with the BOM of UTF-16.
_FOREIGN_BOMS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_BINARY_KINDS = {
    b"PAR1\x15": "it is a Parquet file: give it the suffix .parquet",
    b"ARROW1\0\0": "it is an Arrow file: save it as Parquet",
    b"PK\x03\x04": "it is a zip archive or an Excel workbook: unpack it, or save it as CSV",
    b"BZh": "it is compressed with bzip2: unpack it with bunzip2",
    b"\xfd7zXZ": "it is compressed with xz: unpack it with unxz",
    b"SQLite format 3\0": "it is an SQLite database: export the table as CSV",
}


class _Codec(NamedTuple):
    """How to decompress a format. piece_bytes: how many compressed bytes to process at a time.

    Pieces are small, so that memory stays bounded even if a few bytes decompress to very many: gzip
    expands at most 1032-fold, and zstd can expand 4 bytes to 128 KB.
    """

    name: str
    start: Callable[[], Any]
    error: type[Exception]
    piece_bytes: int


class ByteStream:
    """The text of `blocks`. Reading it blocks; any thread may call `close`.

    first: the first chunk, set by `open`.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.path: PurePath | None = blocks.path
        self.name = blocks.name
        self.first = b""
        self.is_closed = False
        self.is_compressed = False
        self.blocks = blocks
        self._chunks: Iterator[bytes] | None = None

    def open(self) -> None:
        """Opens the input and reads its beginning into `first`. Blocks on a pipe.

        Raises ConfigError if the input cannot be opened, or does not begin like text in UTF-8.
        """
        if self._chunks is not None:
            return
        try:
            self.blocks.open()
            text = self._text()
            self.first = next(text, b"")
        except RedlineError:
            self.close()
            raise
        self._chunks = chain([self.first] if self.first else [], text)

    def chunks(self) -> Iterator[bytes]:
        """Yields the text in chunks of 1 byte to about 1 MB; from a pipe, as soon as bytes arrive.

        Raises ConfigError as `open` does, and CorruptInput if the input breaks off.
        """
        self.open()
        if self._chunks is not None:
            yield from self._chunks

    def close(self) -> None:
        """Ends `chunks` early, even while it waits. Leaves stdin open."""
        self.is_closed = True
        self.blocks.close()

    def command(self, command: str, suffix: str) -> str:
        """Returns a hint with a shell command that converts this input to a readable one."""
        if not isinstance(self.path, Path) or self.is_compressed:
            return f"convert it: {command} in > out{suffix}"
        target = self.path.with_suffix(suffix)
        if target == self.path:
            target = self.path.with_suffix(f".new{suffix}")
        return f"convert it: {command} {shlex.quote(self.name)} > {shlex.quote(str(target))}"

    def _plain(self) -> Iterator[bytes]:
        """Returns the raw blocks, decompressed if they begin like a compressed format."""
        raw = iter(lambda: self.blocks.read(CHUNK_BYTES), b"")
        head = _head(raw, (_GZIP, _ZSTD, *_ZSTD_SKIPPABLE))
        blocks = chain([head], raw)
        named = COMPRESSIONS.get(self.path.suffix.lower()) if self.path else None
        if head.startswith(_GZIP):
            codec = _Codec("gzip", lambda: zlib.decompressobj(wbits=31), zlib.error, 16384)
        elif head.startswith((_ZSTD, *_ZSTD_SKIPPABLE)):
            codec = _zstd(self.name)
        elif named and head:
            raise ConfigError(
                f"{self.name} is not {named} data",
                hint="rename it if it is plain text, or recreate it if it is damaged",
            )
        else:
            return blocks
        self.is_compressed = True
        return self._inflate(blocks, codec)

    def _inflate(self, blocks: Iterator[bytes], codec: _Codec) -> Iterator[bytes]:
        """Yields the decompressed blocks; the input may consist of several frames."""
        inflater = None
        has_frame = False
        for piece in _pieces(blocks, codec.piece_bytes):
            left = piece
            # Tapes and some tools pad a gzip file with zeros.
            while left and (inflater or not has_frame or left.strip(b"\0")):
                inflater, has_frame = inflater or codec.start(), True
                try:
                    plain = inflater.decompress(left)
                except codec.error as error:
                    self._refuse_damaged(f"is damaged: {error}", codec, error)
                left = b""
                if inflater.eof:
                    left, inflater = inflater.unused_data, None
                yield from _pieces([plain], CHUNK_BYTES)
        if inflater is not None and not self.is_closed:
            self._refuse_damaged(f"is cut short: its {codec.name} data has no end", codec, None)

    def _refuse_damaged(self, what: str, codec: _Codec, cause: Exception | None) -> NoReturn:
        test = "gzip -t" if codec.name == "gzip" else "zstd -t"
        is_here = isinstance(self.path, Path)
        hint = f"check it with {test} {self.name}" if is_here else "copy the input again"
        raise CorruptInput(f"{self.name} {what}", where="after 0 rows", hint=hint) from cause

    def _text(self) -> Iterator[bytes]:
        """Yields plain chunks without a BOM. Raises ConfigError for binary data and other BOMs."""
        plain = self._plain()
        head = _head(plain, (_UTF8_BOM, *_FOREIGN_BOMS))
        for bom, encoding in _FOREIGN_BOMS.items():
            if head.startswith(bom):
                suffix = self.path.suffix if self.path else ".jsonl"
                raise ConfigError(
                    f"{self.name} is in {encoding}, not in UTF-8",
                    hint=self.command(f"iconv -f {encoding} -t UTF-8", f".utf8{suffix}"),
                )
        for magic, hint in _BINARY_KINDS.items():
            if head.startswith(magic):
                raise ConfigError(f"{self.name} is a binary file", hint=hint)
        left = SNIFF_BYTES
        for chunk in chain([head.removeprefix(_UTF8_BOM)], plain):
            if b"\0" in chunk[:left]:
                raise ConfigError(
                    f"{self.name} is a binary file",
                    hint="rows are read from JSONL, CSV, TSV or Parquet",
                )
            left = max(0, left - len(chunk))
            if chunk:
                yield chunk


class StreamRows(BlockingRows):
    """Base of sources that read a stream of bytes."""

    def __init__(self, stream: ByteStream) -> None:
        super().__init__(stream.name, None)
        self._stream = stream

    def read_fraction(self) -> float | None:
        """Returns the bytes read divided by the file's size, 0 to 1; None if it is unknown.

        For a compressed file, both are compressed bytes.
        """
        return self._stream.blocks.read_fraction()

    def check(self) -> None:
        """Raises CorruptInput if a local file no longer contains what was read from it. Blocks."""
        self._stream.blocks.check()

    def close(self) -> None:
        """Closes the input; `batches` then ends before its next batch."""
        super().close()
        self._stream.close()


def _head(blocks: Iterator[bytes], magics: tuple[bytes, ...]) -> bytes:
    """Returns the first block, extended only while it could still become one of `magics`.

    A short row in a pipe is therefore passed on without waiting for more bytes.
    """
    head = b""
    while any(len(head) < len(magic) and magic.startswith(head) for magic in magics):
        block = next(blocks, b"")
        if not block:
            break
        head += block
    return head


def _pieces(blocks: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    for block in blocks:
        for start in range(0, len(block), size_bytes):
            yield block[start : start + size_bytes]


def _zstd(name: str) -> _Codec:
    zstandard = extra("zstandard", "zst", f"reading {name}")
    unpacker = zstandard.ZstdDecompressor()
    return _Codec("zstd", unpacker.decompressobj, zstandard.ZstdError, 4096)


def extra(module: str, group: str, purpose: str, instead: str = "") -> Any:
    """Imports an optional library. Raises ConfigError with the command that installs it.

    group: the extra of redline that includes it. purpose: what needs the library, for the message.
    instead: what to do without the library, for the hint.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs {module.partition('.')[0]}, which is not installed",
            hint=f"pip install 'redline[{group}]'{f', or {instead}' if instead else ''}",
        ) from error
