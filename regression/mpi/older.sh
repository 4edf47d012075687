#!/bin/sh
# A deck, a plan and a checkpoint with the names of older versions still train; notes name the present names.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$BRUME_REGRESSION_DIR/data/older/." "$work"
cd "$work"
sed -i "s|^profile .*|profile = \"$BRUME_REGRESSION_DIR/decks/profile.toml\"|" deck.toml
mpirun -n 2 --oversubscribe "$BRUME" run deck.toml --plan plan.toml > said 2>&1 || { cat said; exit 1; }
cat said
for note in "'training.silence_limit_s' is now 'training.heartbeat_timeout_s'" "'data.weights' is now 'data.mixture'" \
  "'search.for' is now 'search.trainer'" "'search.chunks' is now 'search.virtual_stages'" \
  "'search.store' is now 'search.no_recompute'" "'chunks' is now 'virtual_stages'" \
  "'stages\[1\].ckpt_layers' is now 'stages\[1\].full_recompute_layers'"; do
  grep -q "toml:[0-9]*:1: $note" said || { echo "no note: $note"; exit 1; }
done
grep -q "resuming from run/checkpoints/step-2" said || { echo "the checkpoint is not resumed"; exit 1; }
# The losses of the version that wrote it.
sed -n 's/^{"step":\([34]\),.*"loss":\([0-9.]*\).*/\1 \2/p' run/metrics.jsonl | awk '
  { expected = $1 == 3 ? 3.4694074443710465 : 3.4586480582074293; d = $2 - expected; n++
    if (d > 1e-5 || d < -1e-5) bad = 1 }
  END { exit bad || n != 2 }' || { cat run/metrics.jsonl; echo "other losses"; exit 1; }
# A key under both names is refused, one that is given on the command line wins.
printf '[search]\nchunks = [1]\nvirtual_stages = [2]\n' > twice.toml
code=0
"$BRUME" check twice.toml > said 2>&1 || code=$?
[ "$code" -eq 2 ] && grep -q "twice.toml:2:1: 'search.chunks' is now 'search.virtual_stages', which is set too" said ||
  { cat said; exit 1; }
"$BRUME" check deck.toml --set search.chunks='[1]' 2> /dev/null | grep -q '^virtual_stages *= \[1\]' || { echo "--set by an old name"; exit 1; }
