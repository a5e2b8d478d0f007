"""Who may talk to the page's server: nobody but the page itself, about what the page needs.

A browser lets any page that a person visits send requests to 127.0.0.1, and a name that is made to resolve
to it counts as that page's own origin. Gradio checks neither, and serves much that this page has no use for.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OURSELVES = {"127.0.0.1", "localhost", "::1"}
# The page, its files, its events and answers; the last two are Gradio's own, at its start and at a tab's end.
_NEEDED = re.compile(
    r"/|/theme\.css|/favicon\.ico|/config/?|/(assets|static)/.+"
    r"|/gradio_api/(queue/(join|data)|component_server|startup-events|cancel|reset|app_id|heartbeat/\w+)/?"
)
# Whatever a text of a model, a file or the hub might ever become, it reaches no other machine from here.
_HEADERS = {
    "content-security-policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


class OnlyThisMachine:
    """Refuses requests under another host's name, those that another site's page sends, and those for
    anything that the page does not need."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif not is_ours(scope["method"], Headers(scope=scope)):
            await PlainTextResponse("Headstart answers its own page only", 403)(scope, receive, send)
        elif not _NEEDED.fullmatch(scope["path"]):
            await PlainTextResponse("there is nothing here", 404)(scope, receive, send)
        else:

            async def send_guarded(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(_HEADERS)
                await send(message)

            await self._app(scope, receive, send_guarded)


def is_ours(method: str, headers: Headers) -> bool:
    """Whether a request came under this machine's name and, where it tells, from the page itself.

    A link on another site may lead here; nothing else of it may.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    is_link = (method, headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == (
        "GET",
        "navigate",
        "document",
    )
    try:
        named = urlsplit(f"//{host}").hostname in _OURSELVES
        from_here = headers.get("sec-fetch-site", "none") in ("none", "same-origin") or is_link
        return named and from_here and (origin is None or urlsplit(origin).netloc == host)
    except ValueError:
        return False
