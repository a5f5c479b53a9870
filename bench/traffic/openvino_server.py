"""openvino_server: OpenVINO GenAI's continuous batching behind a small part of OpenAI's API, in OpenVINO's environment.

    GET /health            200 once the model is loaded
    POST /v1/completions   streamed completions of one text: max_tokens, temperature, top_p, ignore_eos

OpenVINO's own model server cannot be had as a Python package. A thread steps the pipeline, which releases the
interpreter meanwhile, and hands each step's tokens to the event loop at once. Text is encoded and decoded by Hugging
Face's tokenizers.
"""

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]
from aiohttp import web  # type: ignore[import-not-found]
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from bench.arguments import command_line

Tokens = list[int]
Answer = asyncio.Queue[Tokens | None]
"""A request's new tokens, step by step; None ends them."""


class Steps(threading.Thread):
    """The thread that steps the pipeline."""

    def __init__(self, pipeline: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._loop = pipeline, loop
        self._new: queue.SimpleQueue[tuple[Tokens, Any, Answer]] = queue.SimpleQueue()
        self._open: dict[int, tuple[Any, Answer]] = {}
        self._ids = 0

    def submit(self, ids: Tokens, config: Any) -> Answer:
        answer: Answer = asyncio.Queue()
        self._new.put((ids, config, answer))
        return answer

    def run(self) -> None:
        while True:
            self._accept()
            self._pipeline.step()
            if made := list(self._made()):
                self._loop.call_soon_threadsafe(_hand_out, made)

    def _accept(self) -> None:
        """Add new requests; wait for one if none is running."""
        while not self._open or not self._new.empty():
            ids, config, answer = self._new.get()
            tensor = openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
            self._open[self._ids] = self._pipeline.add_request(self._ids, tensor, config), answer
            self._ids += 1

    def _made(self) -> Iterable[tuple[Answer, Tokens | None]]:
        """Yield the step's tokens by request, and None for each request that has ended."""
        for request, (handle, answer) in list(self._open.items()):
            if handle.can_read():
                yield answer, [token for output in handle.read().values() for token in output.generated_ids]
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING and not handle.can_read():
                del self._open[request]
                yield answer, None


def _hand_out(made: Iterable[tuple[Answer, Tokens | None]]) -> None:
    for answer, tokens in made:
        answer.put_nowait(tokens)


class Api:
    def __init__(self, steps: Steps, tokenizer: Tokenizer) -> None:
        self._steps, self._tokenizer = steps, tokenizer

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids = self._tokenizer.encode(body["prompt"], add_special_tokens=False).ids
        answer = self._steps.submit(ids, _generation(body))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        text, count = DecodeStream(skip_special_tokens=True), 0
        while (tokens := await answer.get()) is not None:
            count += len(tokens)
            piece = "".join(text.step(self._tokenizer, token) or "" for token in tokens)
            await response.write(_event({"choices": [{"index": 0, "text": piece}]}))
        usage = {"prompt_tokens": len(ids), "completion_tokens": count}
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _generation(body: dict[str, Any]) -> Any:
    sampled = body.get("temperature", 1.0) > 0
    cut = {name: body[name] for name in ("temperature", "top_p") if name in body} if sampled else {}
    return openvino_genai.GenerationConfig(
        max_new_tokens=body["max_tokens"], ignore_eos=bool(body.get("ignore_eos")), do_sample=sampled, **cut
    )


def _pipeline(args: argparse.Namespace) -> Any:
    config = openvino_genai.SchedulerConfig()
    for name, value in json.loads(args.scheduler).items():
        setattr(config, name, value)
    properties = {"INFERENCE_NUM_THREADS": args.threads, **json.loads(args.properties)}
    return openvino_genai.ContinuousBatchingPipeline(str(args.model), config, "CPU", properties)


async def _serve(args: argparse.Namespace) -> None:
    pipeline = _pipeline(args)
    steps = Steps(pipeline, asyncio.get_running_loop())
    steps.start()
    api = Api(steps, Tokenizer.from_file(str(args.tokenizer)))
    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.get("/health", api.health), web.post("/v1/completions", api.completions)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", args.port).start()
    await asyncio.Event().wait()


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--scheduler", default="{}", help="fields of SchedulerConfig, as JSON")
    parser.add_argument("--properties", default="{}", help="properties of the device, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(_serve(_arguments()))
