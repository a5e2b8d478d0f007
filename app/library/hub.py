"""Fetches one file from the Hugging Face hub: a program of its own, so that it can be ended at any moment.

``python -m app.library.hub REPOSITORY REVISION FILE PART SIZE SHA256`` appends to PART what it still lacks
and prints one JSON object: ``{"outcome": "done" | "unreachable" | "failed", "what": …, "remedy": …}``. It
ends when its standard input closes, as it does when its parent is gone.

``hf_hub_download`` starts a broken download from zero, so huggingface_hub's ``http_get`` reads the file: it
can go on. The address asked is the hub's own: the client drops the token where that redirects elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported at run time only

Outcome = dict[str, str]
HUB_IS_DOWN = (500, 502, 503, 504)
CONNECT_TIMEOUT_S = 5.0

# The default of 10 MB makes progress jump, and a stop lose as much.
CHUNK = 1 << 16
constants.DOWNLOAD_CHUNK_SIZE = CHUNK


def main(arguments: list[str]) -> None:
    """Do what the module says."""
    repository, revision, file, part, size, sha256 = arguments
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        outcome = fetch(repository, revision, file, Path(part), int(size), sha256)
    except OSError as error:
        outcome = _failed(f"can't write {Path(part).name}: {error.strerror or error}", "free some disk space")
    print(json.dumps(outcome), flush=True)


def fetch(repository: str, revision: str, file: str, part: Path, size: int, sha256: str) -> Outcome:
    """Append to ``part`` what it lacks of the file, out of the hub's cache on this machine if it is there."""
    with part.open("ab", buffering=0) as out:
        have = out.tell()
        cached = try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(cached, str) and Path(cached).stat().st_size == size:
            with Path(cached).open("rb") as source:
                source.seek(have)
                shutil.copyfileobj(source, out, CHUNK)
            return {"outcome": "done"}
        url = hf_hub_url(repository, file, revision=revision)
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        timeout = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or CONNECT_TIMEOUT_S)
        try:
            about = get_hf_file_metadata(url, timeout=timeout)
        except (httpx2.TransportError, OfflineModeIsEnabled) as error:
            return _unreachable(_first_line(error))
        except HfHubHTTPError as error:
            if error.response.status_code in HUB_IS_DOWN:
                return _unreachable(f"it answers {error.response.status_code}")
            return _refused(error, repository, revision, file, "authorization" in headers)
        if about.commit_hash is None:
            return _unreachable("what answers there is no hub: a proxy or a login page")
        if about.size != size or about.etag != sha256:
            return _failed(f"the hub's {file} has another size or SHA-256 than the preset says")
        try:
            http_get(url, out, resume_size=have, headers=headers, expected_size=size)
        except HfHubHTTPError as error:
            return _refused(error, repository, revision, file, "authorization" in headers)
        except httpx2.HTTPError as error:
            return _failed(
                f"the connection to the hub broke: {_first_line(error)}", "repeat it to go on from there"
            )
    return {"outcome": "done"}


def _refused(error: HfHubHTTPError, repository: str, revision: str, file: str, with_token: bool) -> Outcome:
    """The true cause behind the hub's status and its error headers."""
    status = error.response.status_code
    code = error.response.headers.get("X-Error-Code")
    if code == "GatedRepo":
        page = f"{constants.ENDPOINT}/{repository}"
        return _failed(
            f"{repository} is gated", f"accept its terms at {page}, then set HF_TOKEN to your token"
        )
    if status == 401 and with_token:
        return _failed(
            "the hub rejects your access token", "correct or remove HF_TOKEN or the token in HF_HOME"
        )
    if code == "EntryNotFound":
        return _failed(f"{repository} has no file {file} (letter case counts)")
    if code == "RevisionNotFound":
        return _failed(f"{repository} has no commit {revision}")
    if status in (401, 404):
        return _failed(f"the hub has no public repository {repository}", "a private one needs HF_TOKEN")
    if status == 403:
        return _failed(f"the hub denies access to {repository}", "set HF_TOKEN to a token that may read it")
    if status == 429:
        return _failed("the hub has had too many requests from here", "try again in a few minutes")
    return _failed(f"the hub answered {status} for {repository}/{file}", "try again later")


def _failed(what: str, remedy: str = "") -> Outcome:
    return {"outcome": "failed", "what": what, "remedy": remedy}


def _unreachable(why: str) -> Outcome:
    return {"outcome": "unreachable", "what": f"{constants.ENDPOINT} can't be reached ({why})"}


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
