"""ringkv beside its peers, in one run: the same weights, prompts and numbers of tokens. `python -m bench.peers`.

- install    a peer's own virtual environment, pinned
- weights    one model in every peer's own file format
- engines    what is measured: a peer and its settings
- workload   prompts, and how many tokens a request keeps
- worker     one engine's process, asked in JSON lines; `workers/` is what runs inside
- pool       which processes are alive, busy, asleep
- play       engines taking turns
- protocols  which engines, prompts and numbers of requests
- journal    every measurement, as soon as it is made
- analyse    measurements -> cells
- cells      what is kept
- tables     what is printed
- needle     whether the part that is kept still answers
"""
