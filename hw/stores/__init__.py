"""L3 in a store that is asked by page hash: what outlives a run, and what several servers share.

    contract      PageStore: the one interface; which pages are there, read them, write them
    names         who a page belongs to: model, ranks, kind; the file name of a page
    page_order    our page <-> SGLang's bytes of it, by its memory layouts
    sglang_file   SGLang's `file` store: a file a page
    room          how much that folder may take, and which page leaves it first
    lease         leave to touch L2, which ends with its operation
    slot_store    names for the pages of one run's slot file
    dynamic       any class of SGLang's HiCacheStorage interface, fenced in
    foreign       finding such a class, and what it is told
    fence         calls that may fail in any way, or never return
    staging       the host pool such a class is shown
    page_names    the engine's page keys -> names
    device        a store behind the lanes: reads, writes, questions
    opening       the store that a scenario names, with its devices

The slot file (`hw.storage`) is private to a run and knows pages by number; a store knows them by
name (`traces.page_hash`). Only `staging` and `dynamic` need torch, and they import it late.
"""
