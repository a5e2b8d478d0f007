"""The Generate tab: who answers, the conversation, its figures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from app.core.errors import HeadstartError
from app.core.settings import Request
from app.library.presets import Preset
from app.ui import memory_bar, outlook, settings_panel
from app.ui.answering import Answer, Client, answer
from app.ui.components import scripted
from app.ui.conversation import Conversation, Conversations
from app.ui.examples import EXAMPLES
from app.ui.figures import DASH, FigureKeeper
from app.ui.models_find import UNDER_WAY
from app.ui.picker import DRAFTING, Offer, Picker, Picks, progress_card, require_listed
from app.ui.shelf import Shelf

# Progress on no component: for its sake the browser copies, at each update, all that the components hold.
QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "show_progress_on": [],
    "concurrency_limit": None,
    "api_visibility": "private",
}
# One after the other, so that what was picked last is also shown last.
IN_TURN = {**QUIET, "concurrency_limit": 1, "concurrency_id": "picks"}


class GenerateTab:
    """Builds the tab into the open Blocks and holds its handlers."""

    def __init__(self, client: Client, shelf: Shelf) -> None:
        self._client = client
        self._shelf = shelf
        self._picker = Picker(shelf)
        self._conversations = Conversations()
        self._build()
        self._wire()

    # ---- the page -----------------------------------------------------------------------------------------

    def _build(self) -> None:
        # Not a State: it would hold a second connection for every tab, and a browser has six for all of them.
        self.tab_id = gr.Textbox("", visible=False)
        self.picker = scripted("picker.html", ["picker.js"], value={}, elem_id="setup")
        self.offer = scripted("offer.html", ["offer.js"], elem_id="offer")
        with gr.Row(elem_id="about"):
            self.notes = scripted("notes.html", ["notes.js"], value={}, elem_id="notes")
            self.outlook = scripted(
                "outlook.html", ["nodes.js", "outlook-list.js", "outlook.js"], value={}, elem_id="outlook"
            )
            self.memory = scripted(
                "memory.html", ["nodes.js", "memory-bar.js", "memory.js"], value={}, elem_id="memory"
            )
        with gr.Row(elem_id="main"):
            self.chat = scripted(
                "conversation.html",
                ["nodes.js", "strip.js", "tokens.js", "conversation.js"],
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
            scripted("limits.html", ["limits.js"], elem_id="limits")
            self.fields = settings_panel.build()

    def _wire(self) -> None:
        asked_with = [self.picker, *self.fields.values()]
        chosen = [self.picker, self.notes, self.offer, *self.fields.values()]
        self.chat.opened(self._open, None, [self.tab_id, self.chat, self.figures], **QUIET).then(
            self._offer_choices, [self.tab_id, self.offer], chosen, **IN_TURN
        ).then(self._offer_best, self.offer, self.offer, **QUIET).then(
            self._after_fetch, self.offer, chosen, **IN_TURN
        )
        shown = [self.chat, self.figures]
        loaded_with = [self.picker, *(self.fields[name] for name in settings_panel.LOADING)]
        self.chat.ask(self._ask, asked_with, shown, trigger_mode="multiple", **QUIET).then(
            self._expect, loaded_with, self.outlook, **QUIET
        )
        self.chat.halt(self._halt, None, None, trigger_mode="multiple", **QUIET)
        self.chat.renew(self._renew, None, shown, **QUIET)
        self.picker.picked(self._picked, self.offer, chosen, trigger_mode="multiple", **IN_TURN)
        self.offer.fetch(self._fetch, None, self.offer, **QUIET).then(
            self._after_fetch, self.offer, chosen, **IN_TURN
        )
        self.offer.give_up(self._give_up, None, None, **QUIET)
        # Not the fields' own changes: a preset sets them all, and each would ask for everything again.
        for told, on in ((self._weigh, self.memory), (self._expect, self.outlook)):
            self.picker.settled(told, loaded_with, on, trigger_mode="always_last", **QUIET)
        self.picker.settled(
            self._remember, [self.tab_id, *asked_with], None, trigger_mode="always_last", **QUIET
        )

    # ---- the conversation ---------------------------------------------------------------------------------

    def _open(self, event: gr.EventData) -> tuple[str, str, dict[str, Any]]:
        conversation = self._conversations.get(event.tab)
        conversation.settle(patience_s=2)  # a reload leaves a run that nobody reads any more
        return event.tab, conversation.replay(), _last_figures(conversation)

    def _ask(self, event: gr.EventData, picks: Picks, *values: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        asked: dict[str, Any] = event._data
        conversation = self._conversations.get(asked["tab"])
        again = bool(asked.get("again")) and bool(conversation.turns)
        question = conversation.turns[-1].question if again else str(asked.get("text", ""))
        turn = conversation.begin(question, replaces_last=again or bool(asked.get("replace")))
        settings = dict(zip(self.fields, values, strict=True))
        try:
            load, speculation, sampling, max_tokens, stop = settings_panel.to_settings(picks, settings)
            require_listed(self._shelf, load.target, load.draft)
            messages = conversation.messages(settings["system"] or "")
            request = Request(messages, False, max_tokens, stop, sampling, speculation)
            conversation.settings = {"picks": picks, **settings}
        except HeadstartError as error:
            refusal = Answer(turn, len(conversation.turns) - 1, speculates=False)
            refusal.fail(settings_panel.in_words_of_the_page(error.what), error.remedy)
            yield refusal.shown()
            return
        yield from answer(self._client, conversation, turn, load, request)

    def _halt(self, event: gr.EventData) -> None:
        self._conversations.get(event.tab).stop()

    def _renew(self, event: gr.EventData) -> tuple[str, dict[str, Any]]:
        conversation = self._conversations.get(event.tab)
        conversation.clear()
        return conversation.replay(), _last_figures(conversation)

    def _remember(self, tab_id: str, picks: Picks, *values: Any) -> None:
        if tab_id and picks:
            settings = dict(zip(self.fields, values, strict=True))
            self._conversations.get(tab_id).settings = {"picks": picks, **settings}

    # ---- who answers --------------------------------------------------------------------------------------

    def _offer_choices(self, tab_id: str, offer: Offer) -> Iterator[list[Any]]:
        """The state of a page that has just been opened: what was set before, or a preset that is here."""
        for done, total in self._shelf.read():
            notes = {"summary": f"Reading new model files: {done} of {total}", "problems": []}
            yield [gr.skip(), notes, gr.skip(), *[gr.skip()] * len(self.fields)]
        kept = self._conversations.get(tab_id).settings
        first = None if kept else self._picker.first()
        if first is not None:
            yield self._choose(first, offer)
        else:
            yield self._updates(kept.get("picks", {}), kept, offer)

    def _picked(self, event: gr.EventData, offer: Offer) -> list[Any]:
        """The state after the picks that the page has no answer for yet."""
        picks, values = dict(event.since), {}
        for step in event.unanswered:
            picks.update(step["picks"])
            values.update(step["values"])
            preset = self._picker.preset(step["picks"].get("preset"))
            if preset is not None and not self._shelf.missing(preset):
                picks.update(self._picker.picks_of(preset))
                values.update(settings_panel.of_preset(preset))
        value, *others = self._updates(picks, values, offer)
        return [{**value, "answers": event.asked}, *others]

    def _choose(self, preset: Preset, offer: Offer) -> list[Any]:
        return self._updates(self._picker.picks_of(preset), settings_panel.of_preset(preset), offer)

    def _updates(self, picks: Picks, values: dict[str, Any], offer: Offer) -> list[Any]:
        """Of picker, notes, offer and every field; fields that ``values`` leaves out keep their value."""
        value, notes, offer = self._picker.shown(picks, offer)
        fields = [gr.update(value=values[name]) if name in values else gr.skip() for name in self.fields]
        return [value, notes, offer, *fields]

    def _weigh(self, picks: Picks, *values: Any) -> dict[str, Any]:
        settings = dict(zip(settings_panel.LOADING, values, strict=True))
        try:
            load = settings_panel.to_load(picks, settings)
            require_listed(self._shelf, load.target, load.draft)
            return memory_bar.shown(self._shelf.memory(load))
        except HeadstartError:  # said once something is asked
            return {}

    def _expect(self, picks: Picks, *values: Any) -> dict[str, Any]:
        settings = dict(zip(settings_panel.LOADING, values, strict=True))
        if not picks or picks["mode"] not in DRAFTING:
            return {}
        try:
            return outlook.shown(self._shelf.outlook(settings_panel.to_load(picks, settings)))
        except HeadstartError:  # said once something is asked
            return {}

    # ---- fetching -----------------------------------------------------------------------------------------

    def _offer_best(self, offer: Offer) -> Iterator[Any]:
        """The best preset for this machine, or the one that is on its way since before a reload."""
        presets, _ = self._shelf.presets()
        on_its_way = (
            preset
            for preset in presets
            if any(file.state in UNDER_WAY for file in self._shelf.fetching(preset))
        )
        if offer:
            yield gr.skip()
        elif preset := next(on_its_way, None):
            yield from self._follow(preset)
        else:
            yield self._picker.best_offer()

    def _fetch(self, event: gr.EventData) -> Iterator[dict[str, Any]]:
        preset = self._picker.preset(event.preset)
        if preset is not None:
            self._shelf.fetch(preset)
            yield from self._follow(preset)

    def _follow(self, preset: Preset) -> Iterator[dict[str, Any]]:
        """The card of a preset until its files are here or given up."""
        files = self._shelf.fetching(preset)
        while any(file.state in UNDER_WAY for file in files):
            yield progress_card(preset, files)
            time.sleep(0.4)
            files = self._shelf.fetching(preset)
        if error := next((file.error for file in files if file.error), None):
            failed = {"state": "failed", "words": f"{error}.", "button": "Try again"}
            yield {**self._picker.offer(preset), **failed}
        elif self._shelf.missing(preset):  # cancelled here or on the Models tab
            yield self._picker.offer(preset)
        else:
            yield {"state": "done", "preset": preset.name}

    def _after_fetch(self, offer: Offer) -> list[Any]:
        preset = self._picker.preset(offer["preset"]) if offer and offer["state"] == "done" else None
        return self._choose(preset, None) if preset else [gr.skip()] * (len(self.fields) + 3)

    def _give_up(self, event: gr.EventData) -> None:
        preset = self._picker.preset(event.preset)
        if preset is not None:
            self._shelf.give_up(preset)


def _last_figures(conversation: Conversation) -> dict[str, Any]:
    for turn in reversed(conversation.turns):
        if turn.figures is not None:
            return turn.figures
    return {**FigureKeeper().shown(), "ratio": DASH, "ratio_detail": ""}
