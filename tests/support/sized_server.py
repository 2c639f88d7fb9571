"""A server whose answers have a size: `python sized_server.py BYTES [SECONDS]`; prints its port.

It reads each request as a whole and answers a chat completion whose text has BYTES bytes. An answer
takes at least SECONDS, in pieces, so that all come at the same time.
"""

from __future__ import annotations

import asyncio
import json
import sys

PIECES = 20


def answer(size: int) -> bytes:
    message = {"role": "assistant", "content": "y" * size}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = json.dumps({"model": "m", "choices": [choice]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def serve(
    pieces: list[bytes], lasts_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            left = int(head.partition(b"content-length:")[2].partition(b"\r")[0])
            while left and (block := await reader.read(min(left, 1 << 20))):
                left -= len(block)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(lasts_s / len(pieces))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main(size: int, lasts_s: float) -> None:
    data = answer(size)
    step = len(data) // PIECES + 1 if lasts_s else len(data)
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    server = await asyncio.start_server(lambda r, w: serve(pieces, lasts_s, r, w), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0))
