"""Automations of the server: runs whose process has vanished are crashed, failures are told to a webhook."""

from __future__ import annotations

from datetime import timedelta

from prefect.automations import AutomationCore
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CallWebhook, ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from pydantic import HttpUrl, SecretStr, TypeAdapter, ValidationError

from accuracy_core.errors import ConfigurationError

#: a run that is silent for so long is dead: nine heartbeats, since a native call may hold the interpreter for minutes
SILENCE_S = 540
VANISHED = "assay: crash runs whose process has vanished"
NOTIFY = "assay: tell a webhook of runs that did not pass"
WEBHOOK_BLOCK = "assay-failures"
#: a failed run's events are named after its state
_BAD_ENDS = {f"prefect.flow-run.{name}" for name in (
    "AccuracyFailed", "ConfigurationFailed", "NotMeasured", "Failed", "Crashed", "TimedOut"
)}  # fmt: skip
_PAYLOAD = "{{ flow.name }} {{ flow_run.name }} {{ flow_run.state.name }}: {{ flow_run.state.message }}"


def ensure_automations(client: SyncPrefectClient, webhook: str | None = None) -> None:
    """Create or update. Without `webhook` an existing notification stays. Raises ConfigurationError for a bad URL."""
    _ensure(client, vanished_runs())
    if webhook is not None:
        _ensure(client, _notification(webhook))


def vanished_runs(silence_s: int = SILENCE_S) -> AutomationCore:
    """Armed by a run's first heartbeat; any later event of the run, a heartbeat or its end, disarms it."""
    trigger = EventTrigger(
        after={"prefect.flow-run.heartbeat"},
        expect={"prefect.flow-run.*"},
        match={"prefect.resource.id": ["prefect.flow-run.*"]},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=silence_s),
    )
    action = ChangeFlowRunState(state=StateType.CRASHED, message=f"infra: no sign of life for {silence_s} s")
    return AutomationCore(name=VANISHED, trigger=trigger, actions=[action])


def _notification(url: str) -> AutomationCore:
    try:
        TypeAdapter(HttpUrl).validate_python(url)
    except ValidationError as error:
        raise ConfigurationError(f"the webhook {url!r} is no URL", fix="give one such as https://host/path") from error
    block = Webhook(url=SecretStr(url), method="POST")
    saved = block.save(WEBHOOK_BLOCK, overwrite=True)
    trigger = EventTrigger(
        expect=_BAD_ENDS,
        match={"prefect.resource.id": "prefect.flow-run.*"},
        posture=Posture.Reactive,
        threshold=1,
    )
    action = CallWebhook(block_document_id=saved, payload=_PAYLOAD)
    return AutomationCore(name=NOTIFY, trigger=trigger, actions=[action])


def _ensure(client: SyncPrefectClient, automation: AutomationCore) -> None:
    existing = client.read_automations_by_name(automation.name)
    if existing:
        client.update_automation(existing[0].id, automation)
    else:
        client.create_automation(automation)
