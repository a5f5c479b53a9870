"""Files: what a directory's weights are called."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
GROUPS = "int4.groups"  # safetensors, too, but not named so: other programs read all of those in a directory
