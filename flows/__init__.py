"""Prefect flows. Settings that Prefect reads at import are given their defaults here; the environment wins."""

from __future__ import annotations

import os

_DEFAULTS = {
    # a fresh home migrates its database first, which takes longer than Prefect's own 20 s
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # the default serializer is pickle: whoever can write the result storage could run code here
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}
for _name, _value in _DEFAULTS.items():
    os.environ.setdefault(_name, _value)
