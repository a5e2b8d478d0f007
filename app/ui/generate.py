"""The Generate tab: who answers, the conversation, its figures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from app.core.errors import HeadstartError
from app.core.settings import Mode, Request
from app.library.presets import Preset
from app.ui import settings_panel
from app.ui.answering import Answer, Client, answer
from app.ui.components import scripted
from app.ui.conversation import Conversation, Conversations
from app.ui.examples import EXAMPLES
from app.ui.figures import DASH, FigureKeeper, seconds, size
from app.ui.shelf import Download, Shelf

QUIET = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}


class GenerateTab:
    """Builds the tab into the open Blocks and holds its handlers."""

    def __init__(self, client: Client, shelf: Shelf) -> None:
        self._client = client
        self._shelf = shelf
        self._conversations = Conversations()
        self._build()
        self._wire()

    # ---- the page -----------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.tab_id = gr.State("")
        with gr.Row(elem_id="setup"):
            self.fields = settings_panel.choice_fields()
        self.notes = scripted("notes.html", ["notes.js"], value={}, elem_id="notes")
        with gr.Row(elem_id="main"):
            self.chat = scripted(
                "conversation.html",
                ["tokens.js", "conversation.js"],
                value="",
                elem_id="chat",
                examples=EXAMPLES,
            )
            self.figures = scripted(
                "figures.html", ["figures.js"], value=FigureKeeper().shown(), elem_id="figures"
            )
        with gr.Column(elem_id="drawer"):
            with gr.Row(elem_id="drawer-head"):
                gr.Markdown("## Settings", container=False)
                gr.Button("Close", elem_classes="hs-drawer-close", size="sm", scale=0)
            self.fields |= settings_panel.drawer_fields()

    def _wire(self) -> None:
        values = list(self.fields.values())
        choices = [*values, self.notes]
        answering = {**QUIET, "inputs": values, "outputs": [self.chat, self.figures]}
        self.chat.opened(self._open, None, [self.tab_id, self.chat, self.figures], **QUIET).then(
            self._offer_choices, self.tab_id, choices, **QUIET
        ).then(self._offer_best, self.notes, self.notes, **QUIET)
        self.chat.ask(self._ask, trigger_mode="multiple", **answering)
        self.chat.halt(self._halt, None, None, trigger_mode="multiple", **QUIET)
        self.chat.renew(self._renew, None, [self.chat, self.figures], **QUIET)

        chosen = [self.fields[name] for name in ("preset", "target", "mode", "draft")]
        self.fields["preset"].input(self._choose_preset, chosen[0], choices, **QUIET)
        self.fields["target"].input(self._choose_pair, chosen[1:], choices, **QUIET)
        self.fields["mode"].input(self._choose_pair, chosen[1:], choices, **QUIET)
        self.fields["draft"].input(lambda: None, None, chosen[0], **QUIET)
        self.notes.fetch(self._fetch, self.notes, self.notes, **QUIET).then(
            self._after_fetch, [self.notes, *values], choices, **QUIET
        )
        self.notes.give_up(self._give_up, None, None, **QUIET)
        gr.on(
            [field.change for field in values],
            self._remember,
            [self.tab_id, *values],
            None,
            trigger_mode="always_last",
            **QUIET,
        )

    # ---- the conversation ---------------------------------------------------------------------------------

    def _open(self, event: gr.EventData) -> tuple[str, str, dict[str, Any]]:
        conversation = self._conversations.get(event.tab)
        return event.tab, conversation.replay(), _last_figures(conversation)

    def _ask(self, event: gr.EventData, *values: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        asked: dict[str, Any] = event._data
        conversation = self._conversations.get(asked["tab"])
        again = bool(asked.get("again")) and bool(conversation.turns)
        question = conversation.turns[-1].question if again else str(asked.get("text", ""))
        turn = conversation.begin(question, replaces_last=again or bool(asked.get("replace")))
        settings = dict(zip(self.fields, values, strict=True))
        try:
            load, speculation, sampling, max_tokens, stop = settings_panel.to_settings(settings)
            messages = conversation.messages(settings["system"] or "")
            request = Request(messages, False, max_tokens, stop, sampling, speculation)
        except HeadstartError as error:
            refusal = Answer(turn, len(conversation.turns) - 1, speculates=False)
            refusal.fail(error.what, error.remedy)
            yield refusal.shown()
            return
        yield from answer(self._client, conversation, turn, load, request)

    def _halt(self, event: gr.EventData) -> None:
        self._conversations.get(event.tab).stop()

    def _renew(self, event: gr.EventData) -> tuple[str, dict[str, Any]]:
        conversation = self._conversations.get(event.tab)
        conversation.clear()
        return conversation.replay(), _last_figures(conversation)

    def _remember(self, tab_id: str, *values: Any) -> None:
        if tab_id:
            self._conversations.get(tab_id).settings = dict(zip(self.fields, values, strict=True))

    # ---- who answers --------------------------------------------------------------------------------------

    def _offer_choices(self, tab_id: str) -> list[Any]:
        """The state of a page that has just been opened: what was set before, or a preset that is here."""
        presets = self._shelf.presets()[0]
        kept = self._conversations.get(tab_id).settings
        if kept:
            return self._updates(kept)
        ready = [preset for preset in presets if not self._shelf.missing(preset)]
        if ready:
            return self._updates(self._values_of(max(ready, key=lambda preset: preset.size)))
        usable = [model for model in self._shelf.models() if model.is_usable]
        first = {"target": str(usable[0].path), "mode": Mode.LOOKUP.value} if usable else {}
        return self._updates(first)

    def _choose_preset(self, name: str | None) -> list[Any]:
        preset = self._preset(name)
        if preset is None:
            return [gr.skip()] * (len(self.fields) + 1)
        if self._shelf.missing(preset):
            notes = {"summary": preset.summary, "offer": self._offer(preset)}
            return [gr.skip()] * len(self.fields) + [notes]
        return self._updates(self._values_of(preset))

    def _choose_pair(self, target: str | None, mode: str, draft: str | None) -> list[Any]:
        return self._updates({"preset": None, "target": target, "mode": mode, "draft": draft})

    def _values_of(self, preset: Preset) -> dict[str, Any]:
        target = self._shelf.path_of(preset.target)
        draft = self._shelf.path_of(preset.draft) if preset.draft else None
        return settings_panel.of_preset(preset, target, draft)

    def _updates(self, values: dict[str, Any]) -> list[Any]:
        """Updates of every field and of the notes; fields that ``values`` leaves out keep their value."""
        *choices, notes = self._choice_updates(values)
        mode = values.get("mode", Mode.LOOKUP.value)
        rest = []
        for name in list(self.fields)[len(choices) :]:
            update = {"visible": mode in settings_panel.ONLY_IN.get(name, (mode,))}
            rest.append(gr.update(**update, **({"value": values[name]} if name in values else {})))
        return [*choices, *rest, notes]

    def _choice_updates(self, values: dict[str, Any]) -> list[Any]:
        presets, errors = self._shelf.presets()
        models = self._shelf.models()
        target, mode, draft = values.get("target"), values.get("mode", Mode.LOOKUP.value), values.get("draft")
        targets = [(model.name, str(model.path)) for model in models if model.is_usable]
        if target not in [path for _, path in targets]:
            target = None
        drafts, unfit = self._drafts(target) if target and mode == Mode.DRAFT.value else ([], [])
        fitting = [path for _, path in drafts]
        if draft not in fitting:
            draft = next((path for path in fitting if path != target), None)
        preset = self._preset(values.get("preset"))
        notes = {
            "summary": preset.summary if preset else "",
            "unfit": unfit
            + [
                [model.name, model.problem or f"a {model.kind} file"]
                for model in models
                if not model.is_usable
            ],
            "problems": [str(error) for error in errors],
        }
        return [
            gr.update(choices=[self._preset_choice(known) for known in presets], value=values.get("preset")),
            gr.update(choices=targets, value=target),
            gr.update(value=mode),
            gr.update(choices=drafts, value=draft, visible=mode == Mode.DRAFT.value),
            notes,
        ]

    def _drafts(self, target: str) -> tuple[list[tuple[str, str]], list[list[str]]]:
        try:
            checked = self._shelf.drafts_for(Path(target))
        except HeadstartError as error:
            return [], [["drafts", str(error)]]
        fit = [(model.name, str(model.path)) for model, check in checked if check.fits]
        return fit, [[model.name, "; ".join(check.reasons)] for model, check in checked if not check.fits]

    def _preset(self, name: str | None) -> Preset | None:
        return next((preset for preset in self._shelf.presets()[0] if preset.name == name), None)

    def _preset_choice(self, preset: Preset) -> tuple[str, str]:
        to_fetch = sum(model.size for model in self._shelf.missing(preset))
        return (f"{preset.title} ({size(to_fetch)} to fetch)" if to_fetch else preset.title), preset.name

    # ---- fetching -----------------------------------------------------------------------------------------

    def _offer_best(self, notes: dict[str, Any]) -> dict[str, Any]:
        best = self._shelf.best_preset()
        if best is None or not self._shelf.missing(best):
            return notes
        offer = self._offer(best)
        return {
            **notes,
            "offer": {**offer, "title": f"A better pair for this machine: {best.title}", "dismissable": True},
        }

    def _offer(self, preset: Preset) -> dict[str, Any]:
        to_fetch = sum(model.size for model in self._shelf.missing(preset))
        licences = ", ".join(dict.fromkeys(model.licence for model in preset.models))
        return {
            "state": "offer",
            "preset": preset.name,
            "title": f"{preset.title} is not on this machine yet",
            "words": f"{preset.summary} Licence: {licences}.",
            "button": f"Fetch {size(to_fetch)}",
            "dismissable": False,
        }

    def _fetch(self, event: gr.EventData, notes: dict[str, Any]) -> Iterator[dict[str, Any]]:
        preset = self._preset(event.preset)
        if preset is None:
            return
        download = self._shelf.download(preset)
        while not download.is_over:
            yield {**notes, "offer": _progress_card(download)}
            time.sleep(0.4)
        if download.error:
            failed = self._offer(preset)
            words = str(download.error)
            yield {**notes, "offer": {**failed, "state": "failed", "words": words, "button": "Try again"}}
        elif download.cancelled:
            yield {**notes, "offer": self._offer(preset)}
        else:
            yield {**notes, "offer": {"state": "done", "preset": preset.name}}

    def _after_fetch(self, notes: dict[str, Any], *_: Any) -> list[Any]:
        offer = notes.get("offer") or {}
        preset = self._preset(offer.get("preset"))
        if offer.get("state") != "done" or preset is None:
            return [gr.skip()] * (len(self.fields) + 1)
        return self._updates(self._values_of(preset))

    def _give_up(self, event: gr.EventData) -> None:
        preset = self._preset(event.preset)
        if preset is not None:
            self._shelf.download(preset).cancelled = True


def _progress_card(download: Download) -> dict[str, Any]:
    step = download.progress.step if download.progress else "Starting"
    left = download.remaining_s
    words = f"{step}: {size(download.done)} of {size(download.total)}"
    return {
        "state": "fetching",
        "preset": download.preset.name,
        "title": download.preset.title,
        "words": words + (f", about {seconds(left)} to go" if left is not None else ""),
        "fraction": download.done / download.total if download.total else 0,
    }


def _last_figures(conversation: Conversation) -> dict[str, Any]:
    for turn in reversed(conversation.turns):
        if turn.figures is not None:
            return turn.figures
    return {**FigureKeeper().shown(), "ratio": DASH, "ratio_detail": ""}
