#!/bin/bash
# Ctrl-C on a terminal: once a plan is known the search ends with it and says so; before that it
# ends as with its time limit; a terminal shows the progress. Its state is in a file, from which the
# next search continues.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cd "$work"
cat > deck.toml << 'EOF'
[model]
family = "gpt"
num_layers = 48
hidden_size = 6144
num_heads = 64
seq_len = 2048
vocab_size = 50304
[training]
steps = 1
global_batch = 512
precision = "bf16"
[data]
train = "none.tok"
[cluster]
nodes = 4
devices_per_node = 8
memory_gib = 38
host_memory_gib = 900
profile = "a100-40"
[search]
time_limit_s = 200
EOF

# interrupt PATTERN: plans on a terminal, where Ctrl-C is typed when the screen shows the pattern.
interrupt() {
  rm -f screen
  { until grep -q "$1" screen 2> /dev/null || [ -e ended ]; do sleep 0.1; done
    printf '\003'
    while kill -0 $$ && [ ! -e ended ]; do sleep 0.1; done
  } | { code=0; script -qefc "exec '$BRUME' plan deck.toml -o plan.toml --search-state state.toml" screen > /dev/null || code=$?
        echo $code > ended; }
  code=$(cat ended)
  rm ended
}

ended_without_plan() {
  [ "$code" = 3 ] && grep -q 'no plan is known to fit: a signal ended the search' screen && [ ! -e plan.toml ]
}
ended_with_plan() {
  [ "$code" = 0 ] && grep -q 'limit   a signal ended the search' screen && grep -q '^global_batch = 512' plan.toml
}

# At once: the first plan may or may not have been found.
interrupt 'search '
ended_without_plan || ended_with_plan || { echo "at once: exit code $code"; cat -v screen; exit 1; }

rm -f plan.toml
grep -q '^\[searches.searcher\]' state.toml || { echo "no state"; exit 1; }
interrupt 'best .*, gap'
grep -q 'continues from state.toml' screen || { echo "it began again"; exit 1; }
ended_with_plan || { echo "with a plan: exit code $code"; cat -v screen; exit 1; }

# SIGTERM does the same, and the best plan is known at once.
code=0
timeout --preserve-status -s TERM 2 "$BRUME" plan deck.toml -o plan.toml --search-state state.toml 2> screen || code=$?
ended_with_plan || { echo "SIGTERM: exit code $code"; cat screen; exit 1; }

code=0
"$BRUME" plan deck.toml --set training.global_batch=256 --search-state state.toml 2> screen || code=$?
[ "$code" = 2 ] && grep -q 'state.toml is the state of a search with another \[training\]' screen ||
  { echo "another batch: exit code $code"; cat screen; exit 1; }

# A search that came to its end has nothing left.
small='--set model.num_layers=4 --set model.hidden_size=1024 --set model.num_heads=8 --set cluster.nodes=1 --set training.global_batch=16'
"$BRUME" plan deck.toml $small --search-state small.toml -o plan.toml > out 2>&1
"$BRUME" plan deck.toml $small --search-state small.toml -o plan.toml > out 2>&1
grep -Eq 'continues from small.toml: [0-9]+ of [0-9]+ configurations searched, 0 left, best plan' out || { cat out; exit 1; }
