"""Compare columns (ways to answer) on the same prompts, run by run, on this machine.

What a page or a command does with it::

    comparison = runner.new(columns, prompts, repeats, machine.facts(columns))
    comparison = history.load("20260131-154500")       # or one that was stopped, to go on with it
    comparison.remaining()                             # the runs still to make: [] when it is whole

    work = runner.Runner(client, comparison)           # client: the program's one WorkerClient
    for event in work.events():                        # blocks; comes back at least twice a second
        ...                                            # runner.Doing, RunStarted, TokensCame, RunEnded, Ended
    work.cancel()                                      # from any thread: what is done stays, and is stored

Closing the generator stops the current run too. ``comparison.runs`` grows by one ``Row`` for each run, and
after each the comparison is stored in the user-data folder, so that another process can go on with it.

A finished ``Row`` has the figures, the audit and the ``replay``: for each round the seconds since the run
began and its tokens as (text, kind), rejected and discarded ones where they fell. Playing several rows side
by side means showing, at time t, every round up to t.

Results: ``summary.summarise(comparison)`` (by column and kind of task), ``summary.verdicts(comparison)``
(sentences), ``charts.all_charts(comparison, dark)`` (Altair charts by name, the ones that a page shows and
that ``charts.save`` writes as PNG and SVG), ``report.as_json`` / ``as_csv`` / ``as_markdown`` (exports),
``history.entries()`` (what was compared before) and ``charts.overlay`` (several laid over each other).
"""
