"""What people ask for (a preset, a model's name, ``owner/repo:file``, a hub address), and the files it is."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from app.core.errors import HeadstartError, UsageError
from app.library.catalogue import near_names
from app.library.presets import HubSource, PresetModel, load_models, load_presets
from app.library.search import HubFile, HubFiles, files_of

HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
NAME = r"[A-Za-z0-9][\w.-]*"
REPOSITORY = re.compile(rf"(?P<repository>{NAME}/{NAME})(?:@(?P<revision>[\w./-]+))?", re.ASCII)
# What Windows keeps for devices, in any folder and with any ending.
DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
FORMS = "name a preset, owner/repo:file, or the address of a file on the hub"


def models_of(text: str) -> tuple[PresetModel, ...]:
    """The models that a text asks for: those of a preset, or one. The hub is not asked.

    One of a repository may be given as a path, a file's name, a quantisation, or not at all; see ``look_up``.

    Raises:
        UsageError: it can't mean anything.
        HeadstartError: there is no preset or model of that name.
    """
    text = text.strip()
    presets = load_presets()[0]
    models = load_models()[0]
    for preset in presets:
        if preset.name == text:
            return preset.models
    if model := models.get(text.removesuffix(".gguf")):
        return (model,)
    if "/" not in text:
        known = [*(preset.name for preset in presets), *models]
        near = near_names(text, known)
        remedy = f"did you mean {' or '.join(near)}?" if near else FORMS
        raise HeadstartError(f"there is no preset or model '{text}' to fetch", remedy)
    if text.split("/")[0] in HOSTS:
        text = f"https://{text}"
    repository, revision, file = _from_address(text) if "://" in text else _from_words(text)
    found = REPOSITORY.fullmatch(repository)
    revision = revision or (found and found["revision"]) or "main"
    if not found or ".." in revision or not is_harmless(found["repository"], file):
        raise UsageError(f"'{text}' names no file on the hub", FORMS)
    hub = HubSource(found["repository"], revision, file)
    for model in models.values():
        if (model.hub.repository, model.hub.file) == (hub.repository, file) and hub.revision == "main":
            return (model,)
    name = file.rpartition("/")[2].removesuffix(".gguf") or hub.repository.rpartition("/")[2]
    return (PresetModel(name, 0, None, "", hub, folder=hub.repository, is_exact=False),)


def look_up(model: PresetModel, tick: Callable[[], None] = lambda: None) -> tuple[PresetModel, ...]:
    """The model's files with their sizes and hashes at a fixed commit; the hub is asked where need be.

    Raises:
        HeadstartError: the hub can't be reached or refuses, or has no such file; the nearest are named.
    """
    if model.is_exact:
        return (model,)
    listed = files_of(model.hub.repository, model.hub.revision, tick)
    chosen = _chosen(model.hub.file, listed)
    parts = []
    for part in chosen.parts:
        if not is_harmless(listed.repository, part):
            raise HeadstartError(f"{listed.repository}/{part} can't be a file's name on every system")
        size, sha256 = listed.contents[part]
        parts.append(
            dataclasses.replace(
                model,
                name=part.rpartition("/")[2].removesuffix(".gguf"),
                size=size,
                sha256=sha256,
                licence=listed.licence or "",
                hub=HubSource(listed.repository, listed.commit, part),
                folder=listed.repository,
                is_exact=True,
            )
        )
    return tuple(parts)


def _from_address(text: str) -> tuple[str, str, str]:
    """Repository, revision and file of ``https://HOST/owner/repo/blob|resolve|tree/revision/file``."""
    try:
        url = urlsplit(text)
        own = urlsplit(os.environ.get("HF_ENDPOINT", ""))
    except ValueError as error:
        raise UsageError(f"'{text}' is no address", FORMS) from error
    if url.username or url.password:
        raise UsageError("an address with a password in it is not kept", FORMS)
    if url.scheme not in ("http", "https") or url.netloc not in (*HOSTS, own.netloc):
        raise UsageError(f"'{url.netloc}' is not the Hugging Face hub", FORMS)
    path = url.path.removeprefix(own.path.rstrip("/")) if url.netloc == own.netloc else url.path
    owner, name, *rest = [unquote(part) for part in path.strip("/").split("/")] + [""]
    if rest[:1] in (["blob"], ["resolve"], ["tree"]):
        return f"{owner}/{name}", rest[1], "/".join(rest[2:]).rstrip("/")
    if rest != [""]:
        raise UsageError(f"'{text}' is the address of no file", FORMS)
    return _from_words(f"{owner}/{name}")


def _from_words(text: str) -> tuple[str, str, str]:
    """The same of ``owner/repo``, ``owner/repo:file``, ``owner/repo@revision:file``, ``owner/repo/file``."""
    repository, colon, file = text.partition(":")
    if not colon and text.count("/") > 1 and text.lower().endswith(".gguf"):
        owner, name, file = text.split("/", 2)
        repository = f"{owner}/{name}"
    return repository, "", file


def is_harmless(repository: str, file: str) -> bool:
    """Whether the path that they make is a plain one on every system, and leads out of no folder."""
    path = f"{repository}/{file}" if file else repository
    return path.isprintable() and all(
        part.strip(" .") == part
        and part
        and not re.search(r'[\\:*?"<>|]', part)
        and not DEVICES.fullmatch(part)
        for part in path.split("/")
    )


def _chosen(wanted: str, listed: HubFiles) -> HubFile:
    repository = listed.repository
    models = [file for file in listed.files if file.is_model]
    if not models:
        raise HeadstartError(f"{repository} has no GGUF files", "search for a repository that has them")
    if not wanted:
        if len(models) == 1:
            return models[0]
        raise HeadstartError(
            f"{repository} has {len(models)} models", f"name one: {_named(repository, models)}"
        )
    for fits in (
        lambda file: wanted in file.parts,
        lambda file: wanted in (part.rpartition("/")[2] for part in file.parts),
        lambda file: file.is_model and wanted.upper() == file.quantization,
    ):
        found = [file for file in listed.files if fits(file)]
        if len(found) == 1:
            return found[0]
        if found:
            raise HeadstartError(
                f"{repository} has {len(found)} files for '{wanted}'",
                f"name one: {_named(repository, found)}",
            )
    paths = [file.file for file in listed.files]
    if other_case := [path for path in paths if path.casefold() == wanted.casefold()]:
        remedy = f"letter case counts: it is {other_case[0]}"
    else:
        near = near_names(
            wanted, [text for file in models for text in (file.file, file.quantization) if text]
        )
        remedy = f"did you mean {' or '.join(near)}?" if near else f"it has {_named(repository, models)}"
    raise HeadstartError(f"{repository} has no file {wanted}", remedy)


def _named(repository: str, files: list[HubFile]) -> str:
    """How to ask for some of the files: by the quantisation where that is enough."""
    count = [file.quantization for file in files]
    short = [
        file.quantization if file.quantization and count.count(file.quantization) == 1 else file.file
        for file in files
    ]
    return ", ".join(f"{repository}:{name}" for name in short[:3]) + (" …" if len(short) > 3 else "")
