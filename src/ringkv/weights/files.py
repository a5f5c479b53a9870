"""files: names of the weight files in a model directory."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Both are in safetensors format; with another suffix, because other programs load every *.safetensors.
GROUPS = "int4.groups"
BYTE_GROUPS = "int8.groups"
