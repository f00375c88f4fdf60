"""L3 in a local file: slots, the ways to reach them, and the devices that the lanes drive.

    file_store   FileStore: a file, a way to reach it, a checksum; S2H and H2S, its two devices
    slot_file    the file: name, lock, room on the disk, what may be wrong with it
    plan         page lists -> the fewest requests
    plan_native  the same by C (plan.c), where that was compiled
    host         the L2 memory that the file's pages are read into and written from
    pread        transport: preadv and pwritev in a bounded crew of threads, also for O_DIRECT
    native       transport: the same in threads of C (loop.c), where that was compiled
    uring        transport: io_uring, over the system calls (`ring`)
    gds          transport: kvikio (GPUDirect Storage), where it is installed

Nothing here needs torch.
"""
