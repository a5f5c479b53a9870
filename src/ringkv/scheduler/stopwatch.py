"""Stopwatch: measures a loop's requests and engine calls, for `EngineMetrics`."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from ringkv.base.events import Event, Failed, Finished
from ringkv.base.messages import EngineMetrics

RECENT = 1 / 16  # weight of the newest request in the moving average of service times

Clock = Callable[[], float]


class Stopwatch:
    """clock: seconds since any fixed time."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock
        self.metrics = EngineMetrics()
        self._submitted: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._begun: dict[int, float] = {}  # by lane
        self._prefill: dict[int, float] = {}  # seconds of the last prefill, by lane
        self._ended: dict[int, float] = {}  # when it ended
        self._times: dict[str, tuple[float, float]] = {}  # seconds in the queue and of the prefill
        self._feeding: float | None = None  # seconds of the forward pass since the last sampling; None without a pass
        self._sampled = 0.0  # when the last step was done

    def submit(self, request_id: str) -> None:
        self._submitted[request_id] = self.now()

    def begin(self, request_id: str, lane: int) -> None:
        """The prefill of the request's prompt begins in this lane."""
        self._begun[lane] = self.now()
        self._start(request_id, self.now() - self._submitted[request_id])

    def _start(self, request_id: str, waited: float) -> None:
        self._started[request_id] = self.now()
        self._times[request_id] = (waited, 0.0)
        self.metrics = replace(self.metrics, queue=self.metrics.queue.plus(waited))

    def prefilled(self, lane: int) -> None:
        """The prompt in this lane is prefilled."""
        self._ended[lane] = self.now()
        self._prefill[lane] = seconds = self.now() - self._begun[lane]
        self.metrics = replace(self.metrics, prefill=self.metrics.prefill.plus(seconds))

    def insert(self, request_id: str, lane: int) -> None:
        """The request takes its slot, with the prompt in this lane."""
        submitted = self._submitted[request_id]
        since = max(0.0, self._ended[lane] - submitted)
        prefill = min(self._prefill[lane], since)  # a request that came later waited for less of it
        if request_id not in self._started:
            self._start(request_id, self.now() - submitted - prefill)
        self._times[request_id] = (self._times[request_id][0], prefill)

    def compressed(self, since: float) -> None:
        self.metrics = replace(self.metrics, compress=self.metrics.compress.plus(self.now() - since))

    def fed(self, since: float) -> None:
        """The forward pass of a step is done; `sampled` counts it."""
        self._feeding = self.now() - since

    def sampled(self, since: float) -> float | None:
        """A step is done. since: when its sampling began.

        Returns the seconds since the last step was done; None if nothing was fed since then.
        """
        now, fed = self.now(), self._feeding
        gap = None if fed is None else now - self._sampled
        self.metrics = replace(self.metrics, step=self.metrics.step.plus(now - since + (fed or 0.0)))
        self._feeding, self._sampled = None, now
        return gap

    def timed(self, event: Event) -> Event:
        """Return a Finished with the request's times in its usage; any other event unchanged."""
        if not isinstance(event, Finished) or event.request_id not in self._times:
            return event
        queue, prefill = self._times[event.request_id]
        return replace(event, usage=replace(event.usage, queue_seconds=queue, prefill_seconds=prefill))

    def end(self, events: Iterable[Event]) -> None:
        """Forget the requests that ended, and average how long they held their slots."""
        for event in events:
            if isinstance(event, Finished | Failed):
                self._submitted.pop(event.request_id, None)
                self._times.pop(event.request_id, None)
                if (started := self._started.pop(event.request_id, None)) is not None:
                    seconds, before = self.now() - started, self.metrics.service
                    service = before + RECENT * (seconds - before) if before else seconds
                    self.metrics = replace(self.metrics, service=service)
