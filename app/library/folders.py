"""The folders with model files: models/, those of other programs, and those a person added.

What other programs keep is used where it lies: nothing here ever writes there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import HeadstartError
from app.core.paths import models_dir
from app.core.split import model_name
from app.worker import store

ADDED = "folders.json"
_SHA256 = re.compile(r"(?:sha256[:-])?([0-9a-f]{64})")
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with model files.

    ``source``: ``models``, ``huggingface``, ``lmstudio``, ``ollama``, ``jan``, ``gpt4all`` or ``added``;
    ``title`` is what people call it.
    """

    path: Path
    source: str
    title: str


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a place, with names for it: the shortest first, the last is no other file's.

    ``sha256`` is what the program that fetched it checked it against, or None where it doesn't say.
    """

    path: Path
    names: tuple[str, ...]
    sha256: str | None = None


def places() -> list[Place]:
    """The folders that are there: models/ first, then those of other programs, then the added ones."""
    known = [Place(models_dir(), "models", "models")]
    for find in PROGRAMS:
        with contextlib.suppress(RuntimeError):  # a person without a home folder
            known += find()
    known += [Place(path, "added", path.name or str(path)) for path in added_folders()]
    there: dict[str, Place] = {}
    for place in known:
        if os.path.isdir(place.path):  # noqa: PTH112  Path.is_dir raises where it may not look
            there.setdefault(os.path.realpath(place.path), place)
    return list(there.values())


def files_in(place: Place) -> Iterator[Found]:
    """The GGUF files of a place, each part of a split model too. What can't be read is passed over."""
    if place.source == "huggingface":
        yield from _hugging_face_files(place.path)
    elif place.source == "ollama":
        yield from _ollama_files(place.path)
    else:
        for path in _gguf_files(place.path, place.source == "models"):
            yield Found(path, _names(place, path))


def added_folders() -> list[Path]:
    """The folders a person added, whether they are there at the moment or not."""
    kept = store.read(ADDED)
    return [Path(text) for text in kept if isinstance(text, str)] if isinstance(kept, list) else []


def add_folder(path: Path) -> Path:
    """Look for models in a folder too, from now on; its absolute path.

    Raises HeadstartError where it can't be read.
    """
    path = _absolute(path)
    try:
        next(path.iterdir(), None)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise HeadstartError(f"can't look for models in {path}: {reason}") from error
    with _lock:
        if path not in (known := added_folders()):
            _keep([*known, path])
    return path


def forget_folder(path: Path) -> None:
    """Look there no more; its files stay. Raises HeadstartError where it isn't an added folder."""
    path = _absolute(path)
    with _lock:
        if path not in (known := added_folders()):
            remedy = f"these were: {', '.join(map(str, known))}" if known else "`models scan FOLDER` adds one"
            raise HeadstartError(f"the folder {path} was not added", remedy)
        _keep([each for each in known if each != path])


def _absolute(path: Path) -> Path:
    try:
        return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100  takes the .. out of it
    except RuntimeError as error:  # a ~ without a home
        raise HeadstartError(f"'{path}' is no folder: {error}") from error


def _keep(folders: list[Path]) -> None:
    try:
        store.write(ADDED, [str(folder) for folder in folders])
    except OSError as error:
        raise HeadstartError(f"can't write {error.filename}: {error.strerror}") from error


def _gguf_files(folder: Path, ours: bool) -> Iterator[Path]:
    """GGUF files below a folder, in ours also unfinished downloads. Links to folders are not followed.

    Hidden folders hold other programs' working files. A link in models/ that leads out is no model of ours.
    """
    inside = Path(os.path.realpath(folder))
    endings = (".gguf", ".gguf.part") if ours else (".gguf",)
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.lower().endswith(endings) or not os.path.isfile(path):  # noqa: PTH113
                continue
            if ours and not Path(os.path.realpath(path)).is_relative_to(inside):
                continue
            yield path


def _names(place: Place, path: Path) -> tuple[str, ...]:
    inner = path.relative_to(place.path)
    if place.source == "jan" and path.name == "model.gguf" and len(inner.parts) > 1:
        short, longer = inner.parent.name, inner.parent.as_posix()
    else:
        short = model_name(path)
        longer = (inner.parent / short).as_posix()
    longest = inner.as_posix() if place.source == "models" else f"{place.title}/{longer}"
    return short, longer, longest, str(path)


# Where each program keeps its models, by its own settings and defaults.


def _hugging_face() -> list[Place]:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = os.environ.get("HF_HOME") or str(Path(cache, "huggingface"))
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or str(Path(home, "hub"))
    return [Place(Path(os.path.expandvars(hub)).expanduser(), "huggingface", "Hugging Face cache")]


def _lm_studio() -> list[Place]:
    pointer = _text(Path.home() / ".lmstudio-home-pointer").strip()
    homes = [Path(pointer)] if pointer else []
    homes += [Path.home() / ".lmstudio", Path.home() / ".cache" / "lm-studio"]
    moved = [_setting(home / "settings.json", "downloadsFolder") for home in homes]
    folders = [*filter(None, moved), *(home / "models" for home in homes)]
    return [Place(folder, "lmstudio", "LM Studio") for folder in folders]


def _ollama() -> list[Place]:
    if named := os.environ.get("OLLAMA_MODELS"):
        folders = [Path(named).expanduser()]
    else:
        folders = [Path.home() / ".ollama" / "models"]
        if sys.platform == "linux":  # as a service it runs under a name of its own
            folders.append(Path("/usr/share/ollama/.ollama/models"))
    return [Place(folder, "ollama", "Ollama") for folder in folders]


def _jan() -> list[Place]:
    home = _roaming_data() / "Jan"
    named = os.environ.get("JAN_DATA_FOLDER")
    moved = Path(named) if named else _setting(home / "settings.json", "data_folder")
    data = [*filter(None, [moved]), home / "data", Path.home() / "jan"]
    folders = [folder / inner for folder in data for inner in (Path("llamacpp", "models"), Path("models"))]
    return [Place(folder, "jan", "Jan") for folder in folders]


def _gpt4all() -> list[Place]:
    if sys.platform == "win32":
        data = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        settings = _roaming_data()
    else:
        data = _roaming_data()
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    moved = re.search(r"(?m)^modelPath=\"?(.+?)\"?\s*$", _text(settings / "nomic.ai" / "GPT4All.ini"))
    folders = [Path(moved[1].replace("\\\\", "\\"))] if moved else []
    folders += [data / "nomic.ai" / "GPT4All", Path.home() / ".cache" / "gpt4all"]
    return [Place(folder, "gpt4all", "GPT4All") for folder in folders]


PROGRAMS = (_hugging_face, _lm_studio, _ollama, _jan, _gpt4all)


def _roaming_data() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def _hugging_face_files(hub: Path) -> Iterator[Found]:
    """Files of models--OWNER--NAME/snapshots/COMMIT, most of them links to blobs that have their hash's name.

    The path in the snapshot is the one to load: a split model's parts have their names there alone.
    """
    for folder in sorted(hub.glob("models--*")):
        repository = folder.name.removeprefix("models--").replace("--", "/")
        main = _text(folder / "refs" / "main").strip()
        snapshots = sorted((folder / "snapshots").glob("*"), key=lambda path: (path.name != main, path.name))
        for snapshot in snapshots:
            for path in _gguf_files(snapshot, ours=False):
                short = model_name(path)
                longer = (path.relative_to(snapshot).parent / short).as_posix()
                names: tuple[str, ...] = (f"{repository}@{snapshot.name[:8]}/{longer}", str(path))
                if snapshot == snapshots[0]:  # an update does not rename what is newest
                    names = (short, f"{repository}/{longer}", *names)
                blob = path.readlink().name if path.is_symlink() else ""
                yield Found(path, names, _sha256(blob))


def _ollama_files(root: Path) -> Iterator[Found]:
    """Blobs that a manifest HOST/NAMESPACE/MODEL/TAG names as a model's weights, called as Ollama does."""
    for folder in (root / "manifests-v2", root / "manifests"):  # newer versions write the first
        for manifest in sorted(folder.glob("*/*/*/*")):
            host, namespace, model, tag = manifest.relative_to(folder).parts
            owner = "" if namespace == "library" else f"{namespace}/"
            name = f"{owner}{model}:{tag}"
            if host != "registry.ollama.ai":
                name = f"{host}/{namespace}/{model}:{tag}"
            sha256 = _ollama_weights(_json(manifest), root / "blobs")
            blob = root / "blobs" / f"sha256-{sha256}"
            if sha256 and os.path.isfile(blob):  # noqa: PTH113
                yield Found(blob, (name, f"ollama/{name}", str(blob)), sha256)


def _ollama_weights(manifest: object, blobs: Path) -> str | None:
    """The SHA-256 of the model's blob. A list of manifests, one a runner, may name blobs that hold them."""
    if not isinstance(manifest, dict):
        return None
    for layer in _dicts(manifest.get("layers")):
        if layer.get("mediaType") == _OLLAMA_MODEL:
            return _sha256(layer.get("digest"))
    for listed in _dicts(manifest.get("manifests")):
        digest = _sha256(listed.get("digest"))
        inner = _json(blobs / f"sha256-{digest}") if digest else listed
        if isinstance(inner, dict) and (found := _ollama_weights(inner | {"manifests": None}, blobs)):
            return found
    return None


def _dicts(value: object) -> list[dict[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _sha256(text: object) -> str | None:
    match = _SHA256.fullmatch(text.lower()) if isinstance(text, str) else None
    return match[1] if match else None


def _setting(file: Path, key: str) -> Path | None:
    settings = _json(file)
    value = settings.get(key) if isinstance(settings, dict) else None
    return Path(value) if isinstance(value, str) and value else None


def _json(file: Path) -> object:
    try:
        return json.loads(_text(file))
    except (ValueError, RecursionError):
        return None


def _text(file: Path) -> str:
    """A small text file; empty where it can't be read."""
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as open_file:
            return open_file.read(1 << 20)
    except (OSError, ValueError):
        return ""
