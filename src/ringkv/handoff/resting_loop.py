"""RestingLoop: a loop that may be idle while it has requests, because another worker has to act first."""

from ringkv.base.events import Event
from ringkv.base.request import Request
from ringkv.scheduler.actions import Action, Idle, Outcome
from ringkv.scheduler.loop import Loop


class RestingLoop(Loop):
    """Rests from an idle step to the next submit, end of a request, or `wake`."""

    _rests = True

    @property
    def idle(self) -> bool:
        return self._rests

    @property
    def has_requests(self) -> bool:
        return not self._scheduler.idle

    def wake(self) -> None:
        self._rests = False

    def submit(self, request: Request, *others: Request) -> list[Event]:
        self.wake()
        return super().submit(request, *others)

    def _run(self, action: Action) -> list[Event]:
        self._rests = isinstance(action, Idle)
        return super()._run(action)

    def _settle(self, outcome: Outcome) -> list[Event]:
        if outcome.events:
            self.wake()
        return super()._settle(outcome)
