"""The last module of the process that others are forked from: none of them looks for garbage among what that has."""

import gc

gc.collect()
gc.freeze()
gc.set_threshold(10_000)
