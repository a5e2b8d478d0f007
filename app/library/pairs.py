"""Which draft suits a target: what is on this machine, and what its family has on the hub."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path

from app.core.models import PairCheck
from app.core.paths import presets_dir
from app.core.split import parts
from app.library import cache, catalogue
from app.library.catalogue import ModelFile
from app.library.fetch import size_text
from app.library.presets import FAMILIES_FILE, FILE, REPOSITORY
from app.library.strict_yaml import Value, read_yaml
from app.worker import tasks

# A draft pays where its pass is cheap and it is still often right: those of published pairs are 5 to 30
# times smaller than their targets. One that isn't even half as large saves nothing.
BEST_RATIO = math.sqrt(5 * 30)
LEAST_RATIO = 2.0
_TUNED = {"instruct", "it", "chat", "assistant", "thinking"}
_UNTUNED = {"base", "pt", "pretrained"}
_SIZE = re.compile(r"(\d+x)?\d+(\.\d+)?[bm]|a\d+(\.\d+)?[bm]|\d{4}|i?q\d\w*|b?f16|fp16|f32")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model as a draft of a target. ``note`` says in a few words why it ranks where it does."""

    file: ModelFile
    fits: bool
    reasons: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Sibling:
    """A small model of a family on the hub. ``parameters`` is their number, ``size_bytes`` None where the
    source doesn't give it, ``seen_at`` the address where this file was seen."""

    repository: str
    file: str
    parameters: int
    size_bytes: int | None
    seen_at: str


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share a tokenizer. ``names`` is found in the names of all of them."""

    name: str
    names: re.Pattern[str]
    siblings: tuple[Sibling, ...]


def rank_drafts(target: Path) -> list[Candidate]:
    """Every usable model on this machine as a draft of ``target``: those that fit, best first, then the rest.

    The target's own file is among them. Checks run in a helper process and are remembered. Raises
    HeadstartError where the target can't be read.
    """
    files = [file for file in catalogue.list_models() if file.is_usable]
    ours = next((file for file in files if file.path == target), None) or catalogue.described(target)
    checks = _checks(target, [file.path for file in files])
    families = load_families()
    ranked = []
    for file in files:
        check = _with_sizes(checks[file.path], ours.size_bytes, file.size_bytes)
        fit = _Fit(ours, file, families)
        candidate = Candidate(file, check.fits, check.reasons, fit.note())
        ranked.append((not candidate.fits, *fit.rank(), candidate))
    return [candidate for *_, candidate in sorted(ranked, key=lambda entry: entry[:-1])]


def check(target: Path, draft: Path) -> PairCheck:
    """Whether a draft fits a target, by the same rules. Raises HeadstartError as ``rank_drafts`` does."""
    sizes = (sum(part.stat().st_size for part in parts(path)) for path in (target, draft))
    return _with_sizes(tasks.check_pair(target, draft), *sizes)


def siblings(target: ModelFile) -> list[Sibling]:
    """Small models known from the hub that may draft for ``target``, best first.

    Raises HeadstartError where the table of families is broken.
    """
    family = _family(target, load_families())
    if not family:
        return []
    most = target.facts.parameters / LEAST_RATIO if target.facts else math.inf
    smaller = [sibling for sibling in family.siblings if sibling.parameters <= most]
    if not target.facts:
        return smaller
    parameters = target.facts.parameters
    return sorted(smaller, key=lambda sibling: _distance(parameters / sibling.parameters))


def load_families(folder: Path | None = None) -> list[Family]:
    """The families that ``families.yaml`` describes. Raises HeadstartError where it is broken."""
    entries = read_yaml((folder or presets_dir()) / FAMILIES_FILE).entries()
    return [_read_family(name, value) for name, value in entries.items()]


@dataclass(frozen=True, slots=True)
class _Fit:
    """How well a draft's origin and size suit a target."""

    target: ModelFile
    draft: ModelFile
    families: list[Family]

    def rank(self) -> tuple[bool, bool, int, bool, float, str]:
        """A sort key, the best first."""
        is_small = self.ratio >= LEAST_RATIO
        by_name = self.draft.name.casefold()
        return not self.is_made, not is_small, self.kinship, not self.is_alike, _distance(self.ratio), by_name

    def note(self) -> str:
        """The rank in words."""
        if self.draft.path == self.target.path:
            return "the target itself"
        words = ["made from this target"] if self.is_made else []
        words += [("same family", "same architecture", "another architecture")[self.kinship]]
        if self.ratio >= LEAST_RATIO:
            words.append(f"{self.ratio:.{0 if self.ratio >= 10 else 1}f}x smaller")
        else:
            words.append("hardly smaller" if self.ratio > 1 else "not smaller")
        if not self.is_alike:
            words.append("an instruct model" if _is_tuned(self.draft) else "a base model")
        return ", ".join(words)

    @property
    def ratio(self) -> float:
        return self.target.size_bytes / max(self.draft.size_bytes, 1)

    @property
    def is_made(self) -> bool:
        made_from = self.draft.facts.made_from if self.draft.facts else None
        return made_from is not None and made_from == self.target.sha256

    @property
    def is_alike(self) -> bool:
        return _is_tuned(self.draft) == _is_tuned(self.target)

    @property
    def kinship(self) -> int:
        """0 for the same family, 1 for the same architecture, 2 for less."""
        ours, theirs = (_family(file, self.families) for file in (self.target, self.draft))
        if ours == theirs and (ours or _stem(self.target) == _stem(self.draft)):
            return 0
        kinds = {file.facts.architecture if file.facts else None for file in (self.target, self.draft)}
        return 1 if len(kinds) == 1 else 2


def _with_sizes(check: PairCheck, target: int, draft: int) -> PairCheck:
    """The check with one reason more where the draft is the larger file, in bytes."""
    if draft <= target:
        return check
    reason = f"it is larger than the target, {size_text(draft)} against {size_text(target)}"
    return PairCheck(False, (*check.reasons, reason))


def _distance(ratio: float) -> float:
    return abs(math.log(ratio / BEST_RATIO))


def _checks(target: Path, drafts: list[Path]) -> dict[Path, PairCheck]:
    def key(draft: Path) -> str:
        return catalogue.learnt(f"draft {draft} {cache.stamp(draft)}")

    checks: dict[Path, PairCheck] = {}
    for draft in drafts:
        if known := cache.recall(target, key(draft)):
            checks[draft] = PairCheck(fits=known["fits"], reasons=tuple(known["reasons"]))
    if unknown := [draft for draft in drafts if draft not in checks]:
        for draft, check in tasks.check_drafts(target, unknown).items():
            checks[draft] = check
            cache.remember(target, key(draft), dataclasses.asdict(check))
    return checks


def _words(file: ModelFile) -> list[str]:
    name = file.facts.name if file.facts else None
    return re.findall(r"[a-z0-9.]+", f"{name or ''} {file.name}".lower())


def _is_tuned(file: ModelFile) -> bool:
    words = set(_words(file))
    if words & (_TUNED | _UNTUNED):
        return bool(words & _TUNED)
    return bool(file.facts and file.facts.has_chat_template)


def _stem(file: ModelFile) -> list[str]:
    """The name of a model whose family is in no table, without what differs within one."""
    name = (file.facts.name if file.facts else None) or file.name
    words = re.findall(r"[a-z0-9.]+", name.lower())
    return [word for word in words if word not in _TUNED | _UNTUNED and not _SIZE.fullmatch(word)]


def _family(file: ModelFile, families: list[Family]) -> Family | None:
    text = " ".join(_words(file))
    return next((family for family in families if family.names.search(text)), None)


def _read_family(name: str, value: Value) -> Family:
    entries = value.entries(("names", "siblings"), ())
    pattern = entries["names"].text("names")
    try:
        names = re.compile(pattern)
    except re.error as error:
        raise entries["names"].error(f"names '{pattern}' is no pattern: {error}") from error
    listed = entries["siblings"].entries()
    return Family(name, names, tuple(_read_sibling(each, listed[each]) for each in listed))


def _read_sibling(repository: str, value: Value) -> Sibling:
    entries = value.entries(("file", "parameters", "seen_at"), ("size",))
    if not re.fullmatch(REPOSITORY[0], repository):
        raise value.error(f"a repository must be {REPOSITORY[1]}, not '{repository}'")
    return Sibling(
        repository=repository,
        file=entries["file"].text("file", *FILE),
        parameters=entries["parameters"].integer("parameters", least=1),
        size_bytes=entries["size"].integer("size", least=1) if "size" in entries else None,
        seen_at=entries["seen_at"].text("seen_at", r"https://\S+", "an https address"),
    )
