"""Everything a person can set besides the models: the fields, and what they become."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from app.core.errors import UsageError
from app.core.settings import KV_TYPES, MAX_DRAFT, LoadSettings, Mode, SamplingSettings, SpeculationSettings
from app.library.presets import Preset
from app.ui.picker import DRAFTING, NO_DRAFT

WHOLE = {"n_draft", "ngram_min", "ngram_max", "n_ctx", "top_k", "repeat_last_n", "seed", "max_tokens"}
OPTIONAL = {"threads", "gpu_layers", "draft_gpu_layers"}
# Fields that change what is loaded.
LOADING = ("n_ctx", "threads", "gpu_layers", "draft_gpu_layers", "cache_type", "draft_cache_type")
# Fields that mean something in these modes only.
ONLY_IN = {
    "n_draft": (Mode.DRAFT.value, Mode.LOOKUP.value),
    "p_min": (Mode.DRAFT.value,),
    "draft_gpu_layers": DRAFTING,
    "draft_cache_type": DRAFTING,
    "ngram_min": (Mode.LOOKUP.value,),
    "ngram_max": (Mode.LOOKUP.value,),
}
MOST_EXACT = 2**53  # a browser rounds whole numbers beyond it
NAMES = {
    "n_draft": "Draft length", "p_min": "Stop drafting below", "ngram_min": "Shortest match",
    "ngram_max": "Longest match", "threads": "Threads", "gpu_layers": "Target's GPU layers",
    "draft_gpu_layers": "Draft's GPU layers", "n_ctx": "Context", "cache_type": "Target's cache",
    "draft_cache_type": "Draft's cache",
    "top_k": "Top k", "top_p": "Top p", "min_p": "Min p",
    "temperature": "Temperature", "repeat_penalty": "Repeat penalty", "presence_penalty": "Presence penalty",
    "frequency_penalty": "Frequency penalty", "repeat_last_n": "Penalties look back on", "seed": "Seed",
    "max_tokens": "Longest answer",
}  # fmt: skip

Fields = dict[str, Any]


def build() -> Fields:
    """The fields, into the open container."""
    speculation, sampling = SpeculationSettings(), SamplingSettings()
    fields: Fields = {}
    with gr.Group(elem_classes="hs-group"):
        fields["n_draft"] = gr.Slider(
            1, MAX_DRAFT, value=speculation.n_draft, step=1, label=NAMES["n_draft"], elem_id="n_draft",
            info="Tokens proposed before each pass of the target",
        )  # fmt: skip
        fields["p_min"] = gr.Slider(
            0, 0.95, value=speculation.p_min, step=0.05, label=NAMES["p_min"], elem_id="p_min",
            info="The draft model stops when its best guess is less likely than this; 0 never stops",
        )  # fmt: skip
        with gr.Row(elem_id="ngrams"):
            for name, value in (("ngram_min", speculation.ngram_min), ("ngram_max", speculation.ngram_max)):
                fields[name] = _number(name, value, "Tokens that must match to look up")
    with gr.Group(elem_classes="hs-group"):
        fields["system"] = gr.Textbox(
            label="System prompt", lines=2, max_lines=8, elem_id="system", placeholder="None"
        )
        fields["max_tokens"] = _number("max_tokens", 512, "Tokens at most")
    with gr.Accordion("Sampling", open=False, elem_id="sampling"):
        fields["temperature"] = gr.Slider(
            0, 2, value=sampling.temperature, step=0.05, label=NAMES["temperature"], elem_id="temperature",
            info="0 always takes the likeliest token",
        )  # fmt: skip
        with gr.Row():
            fields["top_k"] = _number("top_k", sampling.top_k, "0 is off")
            fields["top_p"] = _number("top_p", sampling.top_p, "1 is off")
        with gr.Row():
            fields["min_p"] = _number("min_p", sampling.min_p, "0 is off")
            fields["seed"] = _number("seed", sampling.seed, "Same seed, same answer")
        with gr.Row():
            fields["repeat_penalty"] = _number("repeat_penalty", sampling.repeat_penalty, "1 is off")
            fields["repeat_last_n"] = _number("repeat_last_n", sampling.repeat_last_n, "Tokens")
        with gr.Row():
            fields["presence_penalty"] = _number("presence_penalty", sampling.presence_penalty, "0 is off")
            fields["frequency_penalty"] = _number("frequency_penalty", sampling.frequency_penalty, "0 is off")
        fields["stop"] = gr.Textbox(
            label="Stop strings",
            lines=1,
            max_lines=6,
            elem_id="stop",
            info="The answer ends at any of them; one a line",
        )
    with gr.Accordion("Memory and processor", open=False, elem_id="loading"):
        fields["n_ctx"] = _number("n_ctx", 4096, "Tokens of prompt and answer together; a change reloads")
        fields["threads"] = _optional("threads", "automatic", "Empty: one for each physical core")
        with gr.Row():
            fields["gpu_layers"] = _optional("gpu_layers", "all that fit", "Empty: all that fit")
            fields["draft_gpu_layers"] = _optional("draft_gpu_layers", "all that fit", "Empty: all that fit")
        fields["cache_type"] = _cache_type(
            "cache_type", "q8_0 takes half as much as f16 and may change answers"
        )
        fields["draft_cache_type"] = _cache_type("draft_cache_type", "A smaller one may cost acceptance")
    for name, modes in ONLY_IN.items():
        fields[name].elem_classes = ["hs-in", *(f"hs-in-{mode}" for mode in modes)]
    return fields


def of_preset(preset: Preset) -> dict[str, Any]:
    """The values of the fields that a preset sets."""
    speculation, sampling = preset.speculation, preset.sampling
    return {
        "n_draft": speculation.n_draft,
        "p_min": speculation.p_min,
        "ngram_min": speculation.ngram_min,
        "ngram_max": speculation.ngram_max,
        "n_ctx": preset.context,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_last_n": sampling.repeat_last_n,
    }


def to_settings(
    picks: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[LoadSettings, SpeculationSettings, SamplingSettings, int, tuple[str, ...]]:
    """What picks and fields say: loading, speculation, sampling, the longest answer, the stop strings.

    Raises:
        UsageError: a field is empty or out of its bounds.
    """
    load = to_load(picks, values)
    number = _Reader(values)
    speculation = SpeculationSettings(
        mode=Mode(picks["mode"]),
        n_draft=number("n_draft"),
        p_min=number("p_min"),
        ngram_min=number("ngram_min"),
        ngram_max=number("ngram_max"),
    )
    sampling = SamplingSettings(
        temperature=number("temperature"),
        top_k=number("top_k"),
        top_p=number("top_p"),
        min_p=number("min_p"),
        repeat_penalty=number("repeat_penalty"),
        presence_penalty=number("presence_penalty"),
        frequency_penalty=number("frequency_penalty"),
        repeat_last_n=number("repeat_last_n"),
        seed=number("seed"),
    )
    stop = tuple(line for line in (values["stop"] or "").splitlines() if line)
    return load, speculation, sampling, number("max_tokens"), stop


def to_load(picks: Mapping[str, Any], values: Mapping[str, Any]) -> LoadSettings:
    """What picks and the fields in LOADING say. Raises UsageError as ``to_settings`` does."""
    if not picks.get("target"):
        raise UsageError("no target model is chosen", "choose one above, or fetch a preset")
    mode = Mode(picks["mode"])
    draft = picks["draft"] if mode.value in DRAFTING and picks["draft"] != NO_DRAFT else ""
    if mode is Mode.DRAFT and not draft:
        raise UsageError("no draft model is chosen", "choose one that fits, or take Lookup, which needs none")
    number = _Reader(values)
    load = LoadSettings(
        target=Path(picks["target"]),
        n_ctx=number("n_ctx"),
        threads=number("threads"),
        gpu_layers=number("gpu_layers"),
        cache_type_k=values["cache_type"],
        cache_type_v=values["cache_type"],
    )
    if not draft:
        return load
    return dataclasses.replace(
        load,
        draft=Path(draft),
        draft_gpu_layers=number("draft_gpu_layers"),
        draft_cache_type_k=values["draft_cache_type"],
        draft_cache_type_v=values["draft_cache_type"],
    )


def in_words_of_the_page(what: str) -> str:
    """What is wrong with a setting, its name as the page has it."""
    return re.sub(r"\b(" + "|".join(NAMES) + r")\b", lambda match: NAMES[match[0]], what)


class _Reader:
    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __call__(self, name: str) -> Any:
        value = self._values[name]
        if name in OPTIONAL:
            text = str(value or "").strip()
            if text and not text.isdecimal():
                raise UsageError(f"{NAMES[name]} '{text}' is not a whole number", "correct it under Settings")
            return int(text) if text else None
        if value is None:
            raise UsageError(f"{NAMES[name]} is empty", "fill it in under Settings")
        if abs(value) > MOST_EXACT:
            raise UsageError(f"{NAMES[name]} is too large to be kept exactly", f"take at most {MOST_EXACT}")
        return int(value) if name in WHOLE else value


def _number(name: str, value: float, info: str) -> Any:
    precision = 0 if name in WHOLE else None
    return gr.Number(value, label=NAMES[name], info=info, precision=precision, min_width=110, elem_id=name)


def _cache_type(name: str, info: str) -> Any:
    default = LoadSettings(Path()).cache_type_k
    return gr.Radio(list(KV_TYPES), value=default, label=NAMES[name], info=info, elem_id=name)


def _optional(name: str, placeholder: str, info: str) -> Any:
    """A whole number or nothing: a text field, since a number field turns to 0 when one tabs through it."""
    return gr.Textbox(
        "", label=NAMES[name], placeholder=placeholder, info=info, max_lines=1, min_width=110, elem_id=name
    )
