"""Posting one request until it is answered, with a short patience."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from accuracy_core.errors import ConfigurationError, InfrastructureError

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
#: a busy or restarting server; every other 4xx is our own request's fault and no retry helps
_RETRIED_STATUS = frozenset({408, 409, 425, 429})


class RequestFailed(InfrastructureError):
    """A request got no answer in all its attempts."""


async def post_until_answered(
    session: Any,
    url: str,
    payload: dict[str, Any],
    headers: dict[str, str],
    attempts: int,
    complaint: Callable[[Any], str],
) -> dict[str, Any]:
    """Post `payload` and return the JSON body.

    `complaint` says what is wrong with a body that came with status 200, or ''. A body that stays unusable in the last
    attempt is returned as it is: the caller counts it. Raises RequestFailed when the server does not answer,
    ConfigurationError when it refuses the request.
    """
    import aiohttp

    problem = ""
    for attempt in range(max(1, attempts)):
        if attempt:
            await asyncio.sleep(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (attempt - 1)))
        try:
            async with session.post(url, json=payload, headers=headers) as response:
                status, text = response.status, await response.text()
        except TimeoutError as error:  # asking again would wait as long again, with the server still busy on the first
            raise RequestFailed("a request got no answer within its time limit") from error
        except aiohttp.ClientError as error:
            problem = f"{type(error).__name__}: {error}"
            continue
        if 400 <= status < 500 and status not in _RETRIED_STATUS:
            raise ConfigurationError(
                f"the server refuses a request (status {status}): {_message(text)}",
                fix="see the server's message; a prompt that is too long needs a larger max_model_len",
            )
        if status != 200:
            problem = f"status {status}: {_message(text)}"
            continue
        try:
            body: dict[str, Any] = json.loads(text)
        except ValueError:
            problem = f"the answer is not JSON: {text[:200]!r}"
            continue
        problem = complaint(body)
        if not problem or (attempt == attempts - 1 and _has_choice(body)):
            return body
    raise RequestFailed(f"a request failed {max(1, attempts)} times; the last time: {problem}")


def _has_choice(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("choices"), list) and bool(body["choices"])


def _message(text: str) -> str:
    """The message in an error body, shortened."""
    try:
        body = json.loads(text)
        error = body.get("error", body)
        found = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        found = text
    return str(found)[:500]
