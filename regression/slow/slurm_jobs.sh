#!/bin/sh
# Each job template on a real Slurm, of which this one machine passes for two nodes of two kinds with four cores and two
# GPUs each: several nodes, an array, a job of two components, the template for GPUs. Each training ends with the bits
# of the same one under mpirun.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/two_groups.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
. "$BRUME_REGRESSION_DIR/slow/slurm_site.sh"
jobs=$BRUME_REGRESSION_DIR/../jobs
# Two nodes of one machine share no memory.
export OMPI_MCA_btl=tcp,self
start_slurm 'n1 Gres=gpu:2 Feature=a100' 'n2 Gres=gpu:2 Feature=l4'

fail() {
  cat ./*.log log/ctld.log
  echo "$*"
  exit 1
}
state() { grep -o '"xxh3_128":"[0-9a-f]*"' "$1/checkpoints/step-12/manifest.json"; }
# same <directory>...: each is a whole training with the bits of the same deck under mpirun.
same() {
  for directory in "$@"; do
    [ -f "$directory/checkpoints/step-12/manifest.json" ] && [ "$(state "$directory")" = "$(state like)" ] ||
      fail "$directory is not what mpirun makes"
  done
}
sed "/^host_memory_gib/a profile = \"${profile#*=}\"" "$deck" > deck.toml
cp deck.toml own.toml
mpirun -n 4 --oversubscribe "$BRUME" run own.toml --set output.directory=like > like.out 2>&1 || { cat like.out; exit 1; }

# Four ranks on two nodes, then with as many GPUs.
sbatch -W --nodes=2 --ntasks-per-node=2 --output=nodes.log "$jobs/slurm.sbatch" own.toml --set output.directory=nodes ||
  fail "several nodes"
sbatch -W --nodes=2 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=1 --output=gpus.log "$jobs/slurm-gpu.sbatch" \
  own.toml --set output.directory=gpus || fail "the template for GPUs"
same nodes gpus
for id in $(sed -n 's/.*JobId=\([0-9]*\) .*NodeList=n\[1-2\].*/\1/p' log/ctld.log | sort -u); do spread="${spread-} $id"; done
[ "$(echo "${spread-}" | wc -w)" -eq 2 ] || fail "the jobs were not on two nodes:${spread-}"

# An array: the deck's own training, one at another rate, and one with a directory of its own.
printf '%s\n' '--set training.seed=1' '--set training.optimizer.lr=1e-3' '--set output.directory=named' > sweep.txt
sbatch -W --array=1-3%2 --output=array-%a.log "$jobs/array.sbatch" own.toml sweep.txt || fail "an array"
same named
[ -f run-1/checkpoints/step-12/manifest.json ] && [ "$(state run-1)" != "$(state run-2)" ] ||
  fail "two lines of an array gave one result"
code=0
sbatch -W --array=4 --output=beyond.log "$jobs/array.sbatch" own.toml sweep.txt || code=$?
[ "$code" -eq 2 ] && grep -q 'sweep.txt has no line 4' beyond.log || fail "a line that is not there: exit code $code"

# Two groups of nodes, a component each, with a stage on either.
sed 's/^ranks_per_node   = 4/ranks_per_node   = 2/' "${profile#*=}" > fast.toml
awk '/^(forward|backward)_s/ { $3 *= 3 } { print }' fast.toml > slow.toml
decks=$BRUME_REGRESSION_DIR/decks
two_groups fast slow
plan 'zero_level = 1' 2 fast 2 1 2 slow 1 2 > stages.toml
sed 's/--nodes=2 --ntasks-per-node=8/--nodes=1 --ntasks-per-node=2/; s/--ntasks-per-node=8/--ntasks-per-node=2/' \
  "$jobs/hetjob.sbatch" > hetjob.sbatch
mpirun -n 4 --oversubscribe "$BRUME" run deck.toml --plan stages.toml --set output.directory=like-kinds > like-kinds.out 2>&1 || fail "mpirun"
sbatch -W --output=kinds.log hetjob.sbatch deck.toml --plan stages.toml --set output.directory=kinds || fail "a job of two components"
[ -f kinds/checkpoints/step-12/manifest.json ] && [ "$(state kinds)" = "$(state like-kinds)" ] ||
  fail "kinds is not what mpirun makes"
grep -q '^brume .* on 4 ranks' kinds.log || fail "the components are not one job"
echo "several nodes, GPUs, an array and two components end as under mpirun"
