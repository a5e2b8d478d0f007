"""Who may talk to the page's server: nobody but the page itself.

A browser lets any page that a person visits send requests to 127.0.0.1, and a name that is made to resolve
to it counts as that page's own origin. Gradio checks neither.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_OURSELVES = {"127.0.0.1", "localhost", "::1"}


class OnlyThisMachine:
    """Refuses requests under another host's name, and those that another site's page sends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_ours(Headers(scope=scope)):
            await PlainTextResponse("Headstart answers its own page only", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def is_ours(headers: Headers) -> bool:
    """Whether a request came under this machine's name and, where it tells, from the page itself."""
    host, origin = headers.get("host", ""), headers.get("origin")
    try:
        named = urlsplit(f"//{host}").hostname in _OURSELVES
        return named and (origin is None or urlsplit(origin).netloc == host)
    except ValueError:
        return False
