#!/bin/sh
# Conversations are packed as Transformers tokenizes them, token by token, and the same tokens are answers.
# $BRUME_PYTHON (default: python3) must have transformers, else this is skipped.
set -eu
python=${BRUME_PYTHON:-python3}
"$python" -c 'import transformers' 2> /dev/null || { echo "$python has no transformers"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1
"$python" -W ignore "$BRUME_REGRESSION_DIR/pytorch/conversations.py" "$BRUME" "$BRUME_REGRESSION_DIR/data/tokenizers" "$work"
