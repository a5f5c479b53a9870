"""Traffic: servers under the same load, from arrivals at random to replayed traces: `python -m bench.traffic`.

- arguments        the command line
- texts            stretches of real text with a given number of tokens
- asks             the requests of a load: prompt, output length, arrival
- traces           arrivals and lengths of recorded traffic
- loads            clients in turn, or arrivals at a rate
- engines          the measured servers and their settings
- server           one server's processes: started, stopped between turns, ended
- openvino_server  an OpenAI-compatible server around OpenVINO's continuous batching
- client           vLLM's own serving benchmark, driven by JSON lines in vLLM's environment
- turns            engines in alternating turns, each written to a journal at once
- figures          what clients saw -> figures
- tables           the printed table
"""
