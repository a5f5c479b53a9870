"""snapshot: what prompts and slots hold now, as plain data for those who watch."""

from ringkv.base.engine import Limits
from ringkv.base.messages import SlotState, StagedPrompt
from ringkv.scheduler.job import Job, PendingPrompt


def staged_prompt(prompt: PendingPrompt) -> StagedPrompt:
    return StagedPrompt(prompt.request.id, prompt.length, prompt.prefilled)


def slot_state(slot: int, job: Job, limits: Limits) -> SlotState:
    """Return the state of a running request's slot."""
    layout, prompt = job.layout, len(job.request.tokens)
    assert layout is not None, "the request does not run"
    return SlotState(
        slot=slot,
        id=job.request.id,
        policy=job.kv.policy,
        prompt=prompt,
        seen=prompt + job.fed,
        live=layout.live(prompt + job.fed),
        sinks=layout.sinks,
        selected=layout.selected,
        protected=layout.protected,
        base=layout.base,
        ring=layout.ring,
        again=layout.again,
        capacity=layout.capacity,
        bytes=limits.request_bytes,
    )
