"""The last import of the fork server: it excludes the imported modules from garbage collection in forked processes."""

import gc

gc.collect()
gc.freeze()
gc.set_threshold(10_000)
