#!/bin/sh
# A plan goes out as arguments of Megatron-LM and comes back the same; the search that found it finds none faster.
# Another one goes out to TorchTitan.
set -eu
job=$(mktemp -d)
trap 'rm -rf "$job"' EXIT
cd "$job"
deck=$BRUME_REGRESSION_DIR/../inputs/llama-8b.toml
for key in 'unequal_stages=false' 'run_ahead=[1]' 'zero_levels=[1]' 'stages=[2]' 'recompute=false' for=megatron \
  'weight_offload=[0.0]' 'grad_offload=[0.0]' 'optim_offload=[0.5]' 'act_offload=[0.0]' simulate_top=1; do
  set -- "$@" --set "search.$key"
done
"$BRUME" plan "$deck" "$@" -o plan.toml 2> /dev/null
"$BRUME" export plan "$deck" --plan plan.toml --to megatron -o arguments.sh 2> said
! grep -q no_recompute_layers said || { cat said; exit 1; }
# The script starts its training with what it is given, but not before it knows which node it is on.
mkdir bin
printf '#!/bin/sh\necho "connections ${CUDA_DEVICE_MAX_CONNECTIONS-}, arguments $*"\n' > bin/torchrun
chmod +x bin/torchrun
! PATH=$PWD/bin:$PATH MASTER_ADDR=here sh arguments.sh > said 2>&1 || exit 1
grep -q 'NODE_RANK: which of the nodes' said || { cat said; exit 1; }
PATH=$PWD/bin:$PATH MASTER_ADDR=here NODE_RANK=1 sh arguments.sh --data-path 'my text' > said
grep -q '^connections [1]*, arguments --nnodes 2 .* --node-rank 1 --master-addr here .* --data-path my text$' said || { cat said; exit 1; }
code=0
"$BRUME" export plan "$deck" --plan plan.toml --to torchtitan 2> said || code=$?
[ $code = 2 ] && grep -q "brume plan $deck --set search.trainer=torchtitan\` searches" said || { cat said; exit 1; }
machine=$(sed -n 's/^machine *= *"\(.*\)".*/\1/p' "$deck") nodes=$(sed -n 's/^nodes *= *\([0-9]*\).*/\1/p' "$deck")
"$BRUME" import plan arguments.sh --from megatron -o back --set "cluster.machine=$machine" --set "cluster.nodes=$nodes" 2> said
diff plan.toml back/plan.toml
"$BRUME" plan back/deck.toml "$@" --against back/plan.toml -o again.toml 2> said
grep -q 'against back/plan.toml: .* simulated; as fast as the best plan$' said || { cat said; exit 1; }
"$BRUME" plan back/deck.toml "$@" --set search.optim_offload='[1.0]' --against plan.toml --json 2> said > found.json
grep -q '"against"' found.json
grep -q 'times as fast' said || { cat said; exit 1; }

# The same plan with sharded weights is a module for TorchTitan that Python can read.
"$BRUME" plan "$deck" "$@" --set search.stages='[1]' --set search.optim_offload='[0.0]' --set search.zero_levels='[3]' --set search.trainer=torchtitan -o sharded.toml 2> said
"$BRUME" export plan "$deck" --plan sharded.toml --to torchtitan -o settings.py 2> said
grep -q 'parallelism.data_parallel_shard_degree = ' settings.py || { cat settings.py; exit 1; }
if command -v python3 > /dev/null; then python3 -m py_compile settings.py; fi

# What is searched for a trainer goes out to it, with one stage and with several; the report says what that costs.
for search in 'megatron [2]' 'torchtitan []'; do
  trainer=${search% *} stages=${search#* }
  "$BRUME" plan "$deck" --set "search.trainer=$trainer" --set "search.stages=$stages" -o found.toml 2> said
  grep -q "^for $trainer: .* per step; the best plan of all takes" said || { cat said; exit 1; }
  "$BRUME" export plan "$deck" --plan found.toml --to "$trainer" -o out 2> said || { cat said; exit 1; }
done
code=0
"$BRUME" plan "$deck" --set search.trainer=megatron --set 'search.weight_offload=[1.0]' 2> said || code=$?
[ $code = 2 ] && grep -q 'search.weight_offload holds nothing that search.trainer = "megatron" has' said || { cat said; exit 1; }
code=0
"$BRUME" plan "$deck" --set search.trainer=torchtitan --set model.num_layers=16 2> said || code=$?
[ $code = 2 ] && grep -q 'TorchTitan .* cannot express a model of these sizes' said || { cat said; exit 1; }
