"""What else than `KNOWN` and `FENCED` agents of these chips know of each other (see `kingpost.emulate.order`)."""

INITIALISED = 2  # mbarriers made visible to asynchronous engines by fence.mbarrier_init
TENSOR = 3  # tcgen05 accesses made visible to other threads by tcgen05.fence::before_thread_sync
