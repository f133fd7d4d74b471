"""The public door of the coordinator: only Flower's Fleet API passes, everything else gets 403.

The SuperLink serves three APIs on one port and has no user login; whoever reaches its Control API
could submit runs. So it listens on loopback, and hospitals reach it through nginx with the file
that `nginx_file` writes, or where there is no nginx through `python -m consilia.federation.proxy`,
which has the same rule.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

#: What may pass: plain names below the Fleet API. nginx is given the same expression.
FLEET = r"/v1/fleet(/[A-Za-z0-9_-]+)+"
REFUSAL = "only the Fleet API is served here"
LARGEST = 2 << 30
_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"host"}
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def passes(method: str, path: bytes) -> bool:
    """Return whether a request may reach the SuperLink: a plain path below the Fleet API, no query."""
    return method == "POST" and re.fullmatch(FLEET, path.decode("latin-1")) is not None


class FleetOnly:
    """An ASGI application that hands Fleet requests on and refuses all others."""

    def __init__(self, target: str, ca: Path) -> None:
        self.target = target
        self.ca = ca
        self._client: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        import ssl

        import httpx

        context = ssl.create_default_context(cafile=str(self.ca))
        await receive()
        self._client = httpx.AsyncClient(base_url=self.target, verify=context, timeout=600)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        import httpx

        headers = list(scope["headers"])
        if scope["query_string"] or not passes(scope["method"], scope["raw_path"]):
            await _say(send, 403, f"{REFUSAL}\n".encode())
            return
        size = next((value for name, value in headers if name == b"content-length"), b"0")
        if not size.isdigit() or int(size) > LARGEST:
            await _say(send, 413, b"too large\n")
            return
        request = self._client.build_request(
            "POST",
            scope["raw_path"].decode("latin-1"),
            headers=[(name, value) for name, value in headers if name not in _HOP],
            content=_body(receive),
        )
        try:
            reply = await self._client.send(request, stream=True)
        except httpx.HTTPError:
            await _say(send, 502, b"the SuperLink does not answer\n")
            return
        kept = [(n.lower(), v) for n, v in reply.headers.raw if n.lower() not in _HOP]
        await send({"type": "http.response.start", "status": reply.status_code, "headers": kept})
        async for chunk in reply.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        await reply.aclose()


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    more, held = True, 0
    while more:
        event = await receive()
        more = event.get("more_body", False)
        held += len(event.get("body", b""))
        if held > LARGEST:
            return
        yield event.get("body", b"")


async def _say(send: Send, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def nginx_file(folder: Path, listen: str, superlink: str) -> str:
    """Return an nginx configuration with the same rule, for the coordinator's folder.

    Args:
        folder: The coordinator's folder; certificates are in its `tls`.
        listen: Where hospitals connect, as host:port.
        superlink: Where the SuperLink listens, as host:port.
    """
    tls, home = folder / "tls", folder / "nginx"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "\n  ".join(f'{kind}_temp_path "{home}/{kind}";' for kind in kinds)
    return f"""# Hospitals see only the Fleet API; the SuperLink's other APIs stay on its loopback port.
worker_processes 1;
daemon off;
pid "{home}/nginx.pid";
error_log "{home}/error.log" warn;
events {{ worker_connections 1024; }}
http {{
  access_log "{home}/access.log";
  {paths}
  default_type text/plain;
  client_max_body_size {LARGEST >> 30}g;
  proxy_request_buffering off;
  proxy_buffering off;
  server_tokens off;
  server {{
    listen {listen} ssl;
    ssl_certificate "{tls}/public.crt";
    ssl_certificate_key "{tls}/public.key";
    ssl_protocols TLSv1.2 TLSv1.3;
    # The path as it was sent, before nginx tidies it up
    if ($request_method != POST) {{ return 403 "{REFUSAL}\\n"; }}
    if ($request_uri !~ "^{FLEET}$") {{ return 403 "{REFUSAL}\\n"; }}
    location / {{
      proxy_pass https://{superlink};
      proxy_ssl_trusted_certificate "{tls}/ca.crt";
      proxy_ssl_verify on;
      proxy_ssl_name localhost;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_read_timeout 600s;
      proxy_send_timeout 600s;
    }}
  }}
}}
"""


def address(host: str, port: int) -> str:
    """Return where to listen, as one word."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main() -> None:
    """Serve until told to stop."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="consilia.federation.proxy")
    for name in ("listen", "target", "ca", "certificate", "key"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    host, _, port = given.listen.rpartition(":")
    uvicorn.run(
        FleetOnly(given.target, Path(given.ca)),
        host=host.strip("[]"),
        port=int(port),
        ssl_certfile=given.certificate,
        ssl_keyfile=given.key,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
    )


if __name__ == "__main__":
    main()
