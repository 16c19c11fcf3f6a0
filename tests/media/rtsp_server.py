"""A small RTSP server on the loopback: one client, numbered JPEG pictures over TCP.

As much of RFC 2326 and RFC 2435 as that needs. It can fall silent or hang up at a given picture,
which is what real cameras do.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Literal

from tests.media import clips
from tests.waiting import HANG_S

_SDP = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
    "m=video 0 RTP/AVP 26\r\na=control:track\r\n"
)


def _segments(jpeg: bytes) -> tuple[bytes, bytes]:
    """The two quantisation tables, and the coded picture, of a plain JPEG file."""
    tables, at = b"", 2
    while True:
        marker, size = struct.unpack(">HH", jpeg[at : at + 4])
        if marker == 0xFFDB:
            body = jpeg[at + 4 : at + 2 + size]
            tables += b"".join(body[i + 1 : i + 65] for i in range(0, len(body), 65))
        at += 2 + size
        if marker == 0xFFDA:
            return tables, jpeg[at:-2]


def _packet(number: int, rate: float) -> bytes:
    """One picture as one interleaved RTP packet."""
    tables, coded = _segments(clips.jpeg(clips.draw(number % 256)))
    header = struct.pack(">BBHII", 0x80, 0x80 | 26, number % 65536, int(number * 90_000 / rate), 7)
    picture = struct.pack(">IBBBB", 0, 1, 255, clips.WIDTH // 8, clips.HEIGHT // 8)
    payload = header + picture + struct.pack(">HH", 0, len(tables)) + tables + coded
    return b"$\0" + struct.pack(">H", len(payload)) + payload


class RtspServer:
    """Serves until closed. ``then`` says what happens after ``num_frames`` pictures."""

    def __init__(
        self, num_frames: int, then: Literal["silent", "hang up"], rate: float = 100.0
    ) -> None:
        self._num_frames = num_frames
        self._then = then
        self._rate = rate
        self._stop = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"rtsp://me:secret@127.0.0.1:{self._socket.getsockname()[1]}/stream"
        self.transport = ""  # what the client asked for
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> RtspServer:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            client, _ = self._socket.accept()
            with client:
                client.settimeout(HANG_S)
                while self._answer(client) != "PLAY":
                    pass
                self._play(client)
        except OSError:
            return  # the client or the test has gone

    def _answer(self, client: socket.socket) -> str:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            more = client.recv(4096)
            if not more:
                raise ConnectionError
            request += more
        lines = request.decode().split("\r\n")
        method = lines[0].split()[0]
        fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        answer, body = [f"CSeq: {fields['CSeq']}", "Session: 1"], ""
        if method == "DESCRIBE":
            body = _SDP
            answer += ["Content-Type: application/sdp", f"Content-Length: {len(body)}"]
        elif method == "SETUP":
            self.transport = fields["Transport"]
            answer.append("Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
        elif method == "OPTIONS":
            answer.append("Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN")
        client.sendall("\r\n".join(["RTSP/1.0 200 OK", *answer, "", body]).encode())
        return method

    def _play(self, client: socket.socket) -> None:
        for number in range(self._num_frames):
            client.sendall(_packet(number, self._rate))
            if self._stop.wait(1 / self._rate):
                return
        if self._then == "silent":
            self._stop.wait()
