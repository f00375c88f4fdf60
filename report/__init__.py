"""What a run left, simulated or real: rows, summary, self-checks, tables, timeline."""
