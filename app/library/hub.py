"""Talks with the Hugging Face hub: a program of its own, so that it can be ended at any moment.

``python -m app.library.hub fetch REPOSITORY REVISION FILE PART SIZE SHA256`` appends to PART what it still
lacks (SHA256 is empty where the hub knows none); ``… search WORDS LIMIT SORT LICENCE GATED PARAMETERS`` and
``… files REPOSITORY REVISION`` ask. Each prints one JSON object: ``{"outcome": "done", …}`` or ``{"outcome":
"unreachable" | "failed", "what": …, "remedy": …}``. It ends when its standard input closes, as it does when
its parent is gone. huggingface_hub reads the environment when it is imported, so every call finds that of its
moment.

``hf_hub_download`` starts a broken download from zero, so huggingface_hub's ``http_get`` reads the file: it
can go on. The address asked is the hub's own: the client drops the token where that redirects elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import (
    HfApi,
    ModelInfo,
    constants,
    get_hf_file_metadata,
    get_session,
    get_token,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported at run time only
    build_hf_headers,
    hf_raise_for_status,
)

from app.library.tokens import token_source

Outcome = dict[str, Any]
HUB_IS_DOWN = (500, 502, 503, 504)
CONNECT_TIMEOUT_S = 5.0
OFFLINE = "HF_HUB_OFFLINE is set"
NO_HUB = "what answers there is no hub: a proxy or a login page"

# The default of 10 MB makes progress jump, and a stop lose as much.
CHUNK = 1 << 16
constants.DOWNLOAD_CHUNK_SIZE = CHUNK


def main(arguments: list[str]) -> None:
    """Do what the module says."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    verb, *rest = arguments
    token = get_token()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        outcome = _failed("your access token has characters that no token has", _correct_the_token())
    else:
        verbs: dict[str, Callable[..., Outcome]] = {"fetch": fetch, "search": search, "files": files}
        try:
            outcome = verbs[verb](*rest)
        except Exception as error:
            outcome = _failed(
                f"the hub's helper process failed ({type(error).__name__}: {_first_line(error)})"
            )
    text = json.dumps(outcome)
    # Whatever a library put into its error, the token goes nowhere but to the hub.
    print(text.replace(token, "(token)") if token else text, flush=True)


def fetch(repository: str, revision: str, file: str, part: str, size: str, sha256: str) -> Outcome:
    """Append to ``part`` what it lacks of the file, out of the hub's cache on this machine if it is there."""
    try:
        return _fetch(repository, revision, file, Path(part), int(size), sha256)
    except OfflineModeIsEnabled:
        return _unreachable(OFFLINE)
    except HfHubHTTPError as error:
        return _refused(error, repository, revision, file)
    except OSError as error:
        return _failed(f"can't write {Path(part).name}: {error.strerror or error}", "free some disk space")
    except httpx2.HTTPError as error:
        return _failed(
            f"the connection to the hub broke: {_first_line(error)}", "repeat it to go on from there"
        )


def search(words: str, limit: str, sort: str, licence: str, gated: str, parameters: str) -> Outcome:
    """Repositories with GGUF files that the words name, the first ``limit`` by ``sort``.

    The last three are filters, or empty: a licence as the hub names it, ``false`` for what is not gated, and
    a range of the number of parameters as the hub writes it.

    ``HfApi.list_models`` repeats a request that fails for 24 s, so the request is made here.
    """

    def found() -> Outcome:
        filters = {"gated": gated, "num_parameters": parameters}
        query = {
            "filter": ["gguf", f"license:{licence}"] if licence else "gguf",
            "search": words,
            "sort": sort,
            "limit": limit,
            "expand": ["downloads", "likes", "lastModified", "gated", "tags"],
            **{name: value for name, value in filters.items() if value},
        }
        response = get_session().get(
            f"{constants.ENDPOINT}/api/models",
            params=query,
            headers=build_hf_headers(),
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        hf_raise_for_status(response)
        models = [ModelInfo(**one) for one in response.json()]  # type: ignore[no-untyped-call]
        return {"outcome": "done", "found": [_described(model) for model in models]}

    return _asked(found, "the search", "")


def files(repository: str, revision: str) -> Outcome:
    """A repository's commit, licence and gate, and the size and SHA-256 of each of its GGUF files."""

    def listed() -> Outcome:
        timeout = float(constants.HF_HUB_ETAG_TIMEOUT)
        model = HfApi().model_info(
            repository, revision=revision or None, files_metadata=True, timeout=timeout
        )
        files = [
            [sibling.rfilename, sibling.size, sibling.lfs.sha256 if sibling.lfs else None]
            for sibling in model.siblings or ()
            if sibling.rfilename.lower().endswith(".gguf") and sibling.size
        ]
        return {"outcome": "done", "commit": model.sha, "files": files, **_described(model)}

    return _asked(listed, repository, revision)


def _asked(ask: Callable[[], Outcome], repository: str, revision: str) -> Outcome:
    try:
        return ask()
    except HfHubHTTPError as error:
        if error.response.status_code in HUB_IS_DOWN:
            return _unreachable(f"it answers {error.response.status_code}")
        return _refused(error, repository, revision, "")
    except OfflineModeIsEnabled:
        return _unreachable(OFFLINE)
    except httpx2.HTTPError as error:
        return _unreachable(_first_line(error))
    except (ValueError, TypeError, KeyError, AttributeError):  # not the JSON that a hub sends
        return _unreachable(NO_HUB)


def _fetch(repository: str, revision: str, file: str, part: Path, size: int, sha256: str) -> Outcome:
    with part.open("ab", buffering=0) as out:
        have = out.tell()
        cached = try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(cached, str) and Path(cached).stat().st_size == size:
            with Path(cached).open("rb") as source:
                source.seek(have)
                shutil.copyfileobj(source, out, CHUNK)
            return {"outcome": "done"}
        url = hf_hub_url(repository, file, revision=revision)
        timeout = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or CONNECT_TIMEOUT_S)
        try:
            about = get_hf_file_metadata(url, timeout=timeout)
        except httpx2.TransportError as error:
            return _unreachable(_first_line(error))
        except HfHubHTTPError as error:
            if error.response.status_code in HUB_IS_DOWN:
                return _unreachable(f"it answers {error.response.status_code}")
            raise
        if about.commit_hash is None:
            return _unreachable(NO_HUB)
        if about.size != size or (sha256 and about.etag != sha256):
            return _failed(f"the hub's {file} has another size or SHA-256 than it should have")
        if size > constants.MAX_HTTP_DOWNLOAD_SIZE:
            return _failed(
                "the hub does not send files over 50 GB this way", "choose a smaller or a split one"
            )
        http_get(url, out, resume_size=have, headers=_headers(), expected_size=size)
    return {"outcome": "done"}


def _headers() -> dict[str, str]:
    return build_hf_headers() | {"Accept-Encoding": "identity"}


def _described(model: ModelInfo) -> Outcome:
    licences = [tag.removeprefix("license:") for tag in model.tags or () if tag.startswith("license:")]
    return {
        "repository": model.id,
        "downloads": model.downloads or 0,
        "likes": model.likes or 0,
        "updated": model.last_modified.isoformat() if model.last_modified else None,
        "gated": model.gated or "",
        "licence": ", ".join(licences) or None,
    }


def _refused(error: HfHubHTTPError, repository: str, revision: str, file: str) -> Outcome:
    """The true cause behind the hub's status and its error headers."""
    status = error.response.status_code
    code = error.response.headers.get("X-Error-Code")
    if code == "GatedRepo":
        page = f"{constants.ENDPOINT}/{repository}"
        then = "" if status == 403 else ", then set HF_TOKEN to your token or save it on the Models page"
        return _failed(f"{repository} is gated", f"accept its terms at {page}{then}")
    if status == 401 and get_token():
        return _failed("the hub rejects your access token", _correct_the_token())
    if code == "EntryNotFound":
        return _failed(f"{repository} has no file {file} (letter case counts)")
    if code == "RevisionNotFound":
        return _failed(f"{repository} has no commit or branch {revision}")
    if status == 404 and get_token():
        return _failed(f"the hub has no repository {repository}, or none that your access token may read")
    if status in (401, 404):
        return _failed(f"the hub has no public repository {repository}", "a private one needs HF_TOKEN")
    if status == 403:
        return _failed(f"the hub denies access to {repository}", "set HF_TOKEN to a token that may read it")
    if status == 429:
        return _failed("the hub has had too many requests from here", "try again in a few minutes")
    return _failed(f"the hub answered {status} for {repository}/{file}".rstrip("/"), "try again later")


def _correct_the_token() -> str:
    return f"correct or remove {token_source()}"


def _failed(what: str, remedy: str = "") -> Outcome:
    return {"outcome": "failed", "what": what, "remedy": remedy}


def _unreachable(why: str) -> Outcome:
    remedy = "unset it and repeat it" if why == OFFLINE else "connect and repeat it"
    what = f"{constants.ENDPOINT} can't be reached ({why})"
    return {"outcome": "unreachable", "what": what, "remedy": remedy}


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
