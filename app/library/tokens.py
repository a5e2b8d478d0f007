"""The access token for the Hugging Face hub: where it comes from, and the one that is kept here."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from app.core.errors import HeadstartError
from app.core.paths import user_data_dir

VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def save_token(token: str) -> None:
    """Keep a token for this program, in a file that only its owner may read; an empty one removes it.

    It goes before those of the environment and of huggingface_hub's own login.

    Raises:
        HeadstartError: no token looks like that, or the file can't be written. The token is not quoted.
    """
    token = token.strip()
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise HeadstartError(
            "this is no access token", "copy it from the hub's settings page, it begins with hf_"
        )
    file = _file()
    try:
        file.unlink(missing_ok=True)
        if token:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as out:
                out.write(token)
    except OSError as error:
        raise HeadstartError(f"can't write {file}: {error.strerror}", "make the folder writable") from error


def saved_token() -> str:
    """The token that is kept here, or an empty string."""
    with contextlib.suppress(OSError, ValueError):
        return _file().read_text("ascii").strip()
    return ""


def token_source() -> str:
    """Where the token comes from that the hub is sent, in words; an empty string where there is none."""
    if saved_token():
        return "the token saved on the Models page"
    for name in VARIABLES:
        if os.environ.get(name, "").strip():
            return f"the environment variable {name}"
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    login = Path(os.environ.get("HF_TOKEN_PATH") or Path(home, "token")).expanduser()
    return f"the token in {login}" if login.exists() else ""


def _file() -> Path:
    return user_data_dir() / "hub-token"
