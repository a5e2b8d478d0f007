"""Questions for an empty conversation: from much copied, where lookup shines, to freely told."""

from __future__ import annotations

_MISSPELT = """\
The harbour lay quiet in the erly morning. A few fishing boats rocked agianst the pier, and the smell of \
salt and diesel hung in the air. Old Marten was allready on deck, mending a net that had torn the nihgt \
before. He worked slowly, becuase his hands were stiff from the cold, but he did not mind. In an hour the \
market would open, and the first buyers would come down the hill with thier baskets. Until then the harbour \
belonged to him, to the gulls, and to the tide that came in wihtout a sound."""

_PASSAGE = """\
Bees tell each other where to find flowers by dancing. A forager that has found a good meadow returns to \
the dark hive and runs in a straight line across the comb, waggling its body, then circles back and runs \
again. The angle between the run and straight up equals the angle between the meadow and the sun, and the \
longer the run lasts, the farther away the meadow is. Other bees follow the dancer closely, feel its \
movements, and smell the nectar it has brought. Then they fly out, and most of them arrive within a few \
metres of the place. The dance is not perfect: wind, hills and a rising sun all blur it. But a colony that \
can share a find feeds itself far better than one in which every bee must search alone, and on a poor day \
that may decide whether it lives through winter."""

EXAMPLES = [
    {
        "label": "Fix this spelling",
        "hint": "mostly copied: lookup shines",
        "text": "Correct the spelling of this text. Change nothing else, and answer with the text alone.\n\n"
        + _MISSPELT,
    },
    {
        "label": "Write a function",
        "hint": "code is easy to guess ahead",
        "text": "Write a Python function `merge_intervals(intervals)` that merges overlapping intervals, "
        "given as (start, end) pairs. Add a docstring and two examples.",
    },
    {
        "label": "Summarise a passage",
        "hint": "words return, sentences don't",
        "text": f"Summarise this passage in three sentences.\n\n{_PASSAGE}",
    },
    {
        "label": "Tell a story",
        "hint": "free text is hard to guess",
        "text": "Tell a short story about a lighthouse keeper who finds a letter in a bottle. Five or six "
        "sentences.",
    },
]
