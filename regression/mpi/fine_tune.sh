#!/bin/sh
# The walk in the tutorial, line by line: a small model in Hugging Face's format is fine-tuned on text with its
# tokenizer, predicts that better, and goes out to Transformers. The last line of the walk needs
# $BRUME_PYTHON (default: python3) with torch and transformers 5, else it is left out.
set -eu
. "$BRUME_REGRESSION_DIR/walk.sh"
ln -s "$BRUME_REGRESSION_DIR/data/hugging_face/gpt2" gpt2

# The commands below the heading; this model is random, so it learns at a higher rate.
walk 'A Hugging Face model, fine-tuned on your own text' 6
export HF_HUB_OFFLINE=1
own="--set cluster.profile=$BRUME_REGRESSION_DIR/decks/profile.toml --set training.optimizer.lr=1e-2"
python=${BRUME_PYTHON:-python3}
"$python" -c 'import torch, transformers; assert transformers.__version__ >= "5"' 2> /dev/null ||
  { echo "$python has no transformers of version 5: its line is left out"; sed -i '/^python3/,$d' walk; }
sed -i "s|brume run .*|& $own|; s|^python3|$python|" walk
sh -eux walk > said || { cat said; fail "the walk ends early"; }
cat said

sed -n 's/^loss *\([0-9.]*\) nats a token$/\1/p' said |
  awk '{ loss[NR] = $1 } END { exit !(NR == 2 && loss[1] > 5 && loss[2] < 4) }' || fail "did not learn the text"
cmp gpt2/tokenizer.json tuned/tokenizer.json
! grep -q ^"$python" walk || grep -q '^Dear ' said || fail "Transformers said nothing"
