"""An engine against itself: the same request served in several ways must have the same logits.

Pure functions over recorded rows; imports numerics and schemas only. `ways` says how to ask for each way and how to see
that it took place, `judge` makes verdicts of rows by `difference`, `yardstick` and `limits`. Nothing is imported here:
`ways` is read where torch must not be loaded.
"""
