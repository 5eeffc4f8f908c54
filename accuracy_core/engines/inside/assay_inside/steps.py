"""Which rows of an engine call belong to which request and position, and which cache blocks a request has.

Everything is read from the scheduler's output, which both generations of vLLM's model runner are given: it holds true
when a fault, or the engine itself, gets the positions that it hands to the model wrong.
"""

from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from assay_inside import forcing
from assay_inside.conduct import first_positions

#: the block that stands for "freed" in vLLM's block tables
NULL_BLOCK = 0


class Watched:
    """A request under watch, by its assay id."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        #: per cache group the ids of its blocks, in order of positions
        self.tables: List[List[int]] = []
        #: (group, index in its table) -> what the block held before somebody else was given it
        self.saved: Dict[Tuple[int, int], Any] = {}
        #: positions of the running sequence whose K and V are in the cache after the last call
        self.computed = 0
        #: calls of the engine that ran tokens of this request
        self.calls = 0
        self.prompt_length = 0

    def restart(self, tables: Any, computed: int) -> None:
        """New blocks: of a new sequence, or of one that was preempted and starts again."""
        self.tables = [list(blocks) for blocks in tables or ()]
        self.saved = {}
        self.computed = computed


class Rows:
    """Rows [start, start + count) of the call are positions [first, first + count) of `request`."""

    def __init__(self, request: Watched, start: int, count: int, first: int) -> None:
        self.request, self.start, self.count, self.first = request, start, count, first


class Steps:
    """Follows the runner's calls between `install` and `remove`."""

    def __init__(self, runner: Any, request_ids: List[str]) -> None:
        self.runner = runner
        self.model = model_of(runner)
        #: a module that several places share is there under each name
        self.modules = dict(self.model.named_modules(remove_duplicate=False))
        self.watched = {name: Watched(name) for name in request_ids}
        #: rows of watched requests in the forward that runs; empty outside of it and in warm-up runs
        self.rows: List[Rows] = []
        #: tokens in the forward that runs, without padding
        self.total = 0
        #: number of the forward that runs, from 1
        self.call = 0
        #: why rows could not be told apart; then nothing is recorded
        self.problem = ""
        #: what went wrong while following the calls; then nothing that was recorded can be trusted
        self.failure = ""
        #: called with (request, ids of blocks about to be written anew) before a call touches the cache
        self.before_reuse: List[Callable[[Watched, Set[int]], None]] = []
        #: called with (args, kwargs of the model's forward) once `rows` are known
        self.before_forward: List[Callable[[Any, Dict[str, Any]], None]] = []
        self._by_engine_id: Dict[str, Watched] = {}
        self._first: Dict[str, int] = {}
        self._scheduled: Dict[str, int] = {}
        self._undo: List[Callable[[], None]] = []

    def install(self) -> None:
        runner, execute = self.runner, self.runner.execute_model
        had_own = "execute_model" in vars(runner)

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            self._guarded(self._follow, scheduler_output)
            try:
                return execute(scheduler_output, *args, **kwargs)
            finally:
                self._scheduled, self.rows = {}, []

        def restore() -> None:
            if had_own:
                runner.execute_model = execute
            else:
                del runner.execute_model

        runner.execute_model = execute_model
        handles = [
            self.model.register_forward_pre_hook(
                lambda model, args, kwargs: self._guarded(self._enter, args, kwargs), with_kwargs=True
            ),
            self.model.register_forward_hook(self._leave),
        ]
        self._undo = [restore] + [handle.remove for handle in handles]

    def remove(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        """An error of ours, on a release of vLLM that is not known, must not end its engine."""
        try:
            if not self.failure:
                action(*args)
        except Exception as error:
            self.failure = "%s: %s" % (type(error).__name__, error)
            self._scheduled, self.rows = {}, []

    def _follow(self, output: Any) -> None:
        """Before the call: note new requests and blocks. Nothing has been written to the cache yet."""
        new = list(output.scheduled_new_reqs)
        cached = output.scheduled_cached_reqs
        fresh = {block for request in new for group in request.block_ids or () for block in group}
        for tables in cached.new_block_ids:
            fresh.update(block for group in tables or () for block in group)
        for watched in self.watched.values():
            for listener in self.before_reuse:
                listener(watched, fresh)
        for request in new:
            found = forcing.settings(request.sampling_params)
            name = found[0] if found else None
            if name is not None and name in self.watched:
                watched = self._by_engine_id[request.req_id] = self.watched[name]
                watched.restart(request.block_ids, request.num_computed_tokens)
                # a request that is asked again with its output so far keeps its own prompt's length
                watched.prompt_length = watched.prompt_length or len(request.prompt_token_ids or ())
        for index, name in enumerate(cached.req_ids):
            if name not in self._by_engine_id:
                continue
            watched, blocks = self._by_engine_id[name], cached.new_block_ids[index]
            computed = cached.num_computed_tokens[index]
            if _resumed(cached, index):
                watched.restart(blocks, computed)
            elif blocks is not None:
                for group, table in enumerate(watched.tables):
                    table.extend(blocks[group])
        firsts = first_positions(output)
        self._first = {name: firsts[name] for name in firsts if name in self._by_engine_id}
        self._scheduled = dict(output.num_scheduled_tokens)

    def _enter(self, args: Any, kwargs: Dict[str, Any]) -> None:
        """Runs after the batch was put in order, which is why it is here and not before the call."""
        self.rows = []
        if not self._scheduled:  # a warm-up run
            return
        self.call += 1
        order = self._order()
        if order is None:
            return
        start = 0
        for name in order:
            count = self._scheduled.get(name, 0)
            if count and name in self._first:
                self.rows.append(Rows(self._by_engine_id[name], start, count, self._first[name]))
            start += count
        self.total = start
        for listener in self.before_forward:
            listener(args, kwargs)
        for rows in self.rows:
            rows.request.calls += 1
            rows.request.computed = rows.first + rows.count

    def _leave(self, model: Any, args: Any, output: Any) -> None:
        self.rows = []

    def _order(self) -> Optional[List[str]]:
        """Engine's request ids in the order of their rows."""
        batch = getattr(self.runner, "input_batch", None)
        if batch is not None and hasattr(batch, "req_ids"):
            return list(batch.req_ids)
        if len(self._scheduled) == 1:
            return list(self._scheduled)
        self.problem = "this vLLM's model runner does not say in which order it runs several requests at once"
        return None


def model_of(runner: Any) -> Any:
    return runner.get_model() if hasattr(runner, "get_model") else runner.model


def _resumed(cached: Any, index: int) -> bool:
    """Whether a preempted request starts again; vLLM has had two ways to say so."""
    if hasattr(cached, "resumed_req_ids"):
        return cached.req_ids[index] in cached.resumed_req_ids
    return bool(cached.resumed_from_preemption[index])
