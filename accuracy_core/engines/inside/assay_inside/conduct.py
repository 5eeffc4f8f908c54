"""How the engine ran each request, from what its scheduler handed to the model runner."""

import functools
from typing import Any, Dict, Optional, Tuple

from assay_inside import forcing


def first_positions(output: Any) -> Dict[str, int]:
    """Engine's id of every request in a scheduler's output -> position of the first token that the call runs."""
    firsts = {request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    firsts.update({name: cached.num_computed_tokens[index] for index, name in enumerate(cached.req_ids)})
    return firsts


class Observer:
    """Watches a runner's calls for as long as it lives; a few dictionary entries a call."""

    def __init__(self, runner: Any) -> None:
        #: what went wrong while following the calls; then nothing more is told
        self.failure = ""
        self._found: Dict[str, Dict[str, Any]] = {}
        #: engine's id -> (assay id, length of the prompt)
        self._running: Dict[str, Tuple[str, int]] = {}
        execute = runner.execute_model

        @functools.wraps(execute)
        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.failure:
                try:
                    self._note(scheduler_output)
                except Exception as error:  # on a release of vLLM that is not known: must not end its engine
                    self.failure = "%s: %s" % (type(error).__name__, error)
            return execute(scheduler_output, *args, **kwargs)

        runner.execute_model = execute_model

    def _note(self, output: Any) -> None:
        for name in output.finished_req_ids:
            self._running.pop(name, None)
        for request in output.scheduled_new_reqs:
            request_id, _ = forcing.settings(request.sampling_params) or (None, None)
            if request_id is not None:
                self._running[request.req_id] = (request_id, len(request.prompt_token_ids or ()))
                new = {"cached_tokens": 0, "prefill_chunks": [], "largest_batch": 1}
                self._found.setdefault(request_id, new)["cached_tokens"] += request.num_computed_tokens
        firsts = first_positions(output)
        counts = {name: count for name, count in output.num_scheduled_tokens.items() if count}
        for name, count in counts.items():
            if name not in self._running:
                continue
            request_id, length = self._running[name]
            found = self._found[request_id]
            found["largest_batch"] = max(found["largest_batch"], len(counts))
            of_prompt = min(count, length - firsts[name])
            if of_prompt > 0:
                found["prefill_chunks"].append(of_prompt)

    def take(self, request_id: str) -> Optional[Dict[str, Any]]:
        """The fields of `ReplayConduct` for `request_id`, and forget them; None when it is not known how it ran."""
        found = self._found.pop(request_id, None)
        return None if self.failure else found
