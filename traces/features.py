"""What the rows of a trace make use of: so that a writer can say beforehand what it cannot hold."""

from __future__ import annotations

from dataclasses import dataclass

from traces.rows import Layout, Row, RowStream


@dataclass(slots=True)
class Features:
    """How many rows have what not every format can say."""

    rows: int = 0
    untimed: int = 0
    # Rows that belong to a session; rows that wait for another's answer.
    sessions: int = 0
    waits: int = 0
    # Rows that name their answer.
    answers: int = 0
    # Rows with the tokens that a recorded server found in its cache.
    cached: int = 0
    # Rows some of whose prompt no id names.
    unnamed: int = 0

    def add(self, row: Row, layout: Layout) -> None:
        """Count one more row."""
        self.rows += 1
        self.untimed += row.timestamp is None
        self.sessions += bool(row.session)
        self.waits += row.after >= 0
        self.answers += row.output_ids is not None
        self.cached += row.cached_tokens >= 0
        if layout.has_ids:
            if row.lengths is None:
                self.unnamed += len(row.hash_ids) * layout.block_tokens < row.input_length
            else:
                self.unnamed += sum(row.lengths) < row.input_length


def survey(stream: RowStream) -> Features:
    """Count the features of all rows: takes a pass, in which malformed rows are errors as ever."""
    features = Features()
    layout = stream.layout
    for rows, _ in stream.batches():
        for row in rows:
            features.add(row, layout)
    return features


def left_out(features: Features | None, kept: frozenset[str] = frozenset()) -> list[str]:
    """A sentence for each feature that is not in `kept` and that rows have, or may have (None).

    The features are "sessions", "waits", "answers" and "cached".
    """
    sentences = {
        "sessions": "which session a request belongs to",
        "waits": "which answer a request waits for, and its think time (what is written is "
        "replayed by its timestamps)",
        "answers": "the ids of the answers, so that a later turn does not find them in a cache",
        "cached": "how many tokens the recorded server found in its cache",
    }
    told: list[str] = []
    for feature, what in sentences.items():
        if feature in kept:
            continue
        if features is None:
            told.append(f"Left out, where the trace says it: {what}.")
        elif count := getattr(features, feature):
            told.append(f"Left out, for {count:,} of {features.rows:,} requests: {what}.")
    return told
