"""files: names of the weight files in a model directory."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
GROUPS = "int4.groups"  # in safetensors format; another suffix, because other programs load every *.safetensors
