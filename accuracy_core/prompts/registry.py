"""Registry of prompt plugins, by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from accuracy_core.errors import ConfigurationError
from accuracy_core.prompts.plugin import PromptPlugin
from accuracy_core.prompts.plugins.engine_consistency import EngineConsistencyPlugin
from accuracy_core.prompts.plugins.kv_cache import KvCachePlugin
from accuracy_core.prompts.plugins.logit_val import LogitValPlugin
from accuracy_core.prompts.plugins.tensor_compare import TensorComparePlugin

#: name -> class; further plugins add themselves with `register`
PLUGIN_REGISTRY: dict[str, type[PromptPlugin]] = {}


def register(plugin: type[PromptPlugin]) -> type[PromptPlugin]:
    """Add a plugin class under its `name`; usable as a decorator. Raises ConfigurationError for a taken name."""
    taken = PLUGIN_REGISTRY.get(plugin.name)
    if taken is not None and taken is not plugin:
        raise ConfigurationError(f"two prompt plugins are called {plugin.name!r}: {taken.__name__}, {plugin.__name__}")
    PLUGIN_REGISTRY[plugin.name] = plugin
    return plugin


def make_plugins(
    steps: Sequence[str | PromptPlugin], options: Mapping[str, Mapping[str, Any]] | None = None
) -> list[PromptPlugin]:
    """Plugins from names or instances; `options`: keywords of those that are given by name.

    Raises ConfigurationError for none, an unknown name, or the same name twice.
    """
    plugins: list[PromptPlugin] = []
    for step in steps:
        if isinstance(step, PromptPlugin):
            plugins.append(step)
            continue
        if step not in PLUGIN_REGISTRY:
            near = difflib.get_close_matches(str(step), PLUGIN_REGISTRY, n=1)
            raise ConfigurationError(
                f"unknown prompt plugin {step!r}; known: {', '.join(sorted(PLUGIN_REGISTRY))}",
                fix=f"did you mean {near[0]!r}?" if near else "choose one of the known names",
            )
        plugins.append(PLUGIN_REGISTRY[step](**(options or {}).get(step, {})))
    if not plugins:
        raise ConfigurationError("plugin_steps is empty: nothing to analyse", fix="give at least [LogitValPlugin()]")
    names = [plugin.name for plugin in plugins]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"plugin {', '.join(twice)} is given twice: their results would overwrite each other")
    return plugins


register(LogitValPlugin)
register(KvCachePlugin)
register(TensorComparePlugin)
register(EngineConsistencyPlugin)
