"""ringkv beside other engines in one run with the same weights, prompts and token counts: `python -m bench.peers`.

- install    a virtual environment per peer, with pinned versions
- weights    one model in every peer's file format
- engines    the measured engines and their settings
- workload   prompts, and the number of tokens that a request keeps
- worker     one engine's process, driven by JSON lines; `workers/` has the code that runs inside
- pool       the worker processes: alive, busy or stopped
- trial      engines in alternating turns
- protocols  engines, prompts and numbers of requests that are measured together
- journal    every measurement, written at once
- analyse    measurements -> cells
- cells      the medians that are appended to the results
- tables     the printed table
- needle     retrieval with compressed caches
"""
