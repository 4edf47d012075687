#!/bin/sh
# Launches that cannot train are refused within two seconds, by one rank: too few ranks or too many, for the deck or for
# the plan; ranks started unlike each other, by command line, program or data; copies of a job of one rank.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
job="$BRUME run $deck --set $profile"
# refused <sentence> <options of mpirun and command...>
refused() {
  sentence=$1
  shift
  refused_soon 2 "$sentence" mpirun --oversubscribe "$@"
}

refused 'the job has 3 ranks: start 4 ranks' -n 3 $job
refused 'the job has 5 ranks: start 4 ranks' -n 5 $job
"$BRUME" plan "$deck" --set "$profile" --set cluster.devices_per_node=2 -o plan.toml > log 2>&1
refused 'the plan is for 2 ranks, the job has 4' -n 4 $job --plan plan.toml
refused 'deck is required' -n 4 "$BRUME" run

unlike="rank 2 was started by 'brume"
refused "$unlike run $deck --set $profile --steps 2', rank 0 'brume run $deck --set $profile --steps 1'" \
  -n 2 $job --steps 1 : -n 2 $job --steps 2
refused "$unlike run $deck --set $profile --set training.seed=2'" -n 2 $job --set training.seed=1 : -n 2 $job --set training.seed=2
refused "$unlike eval run'" -n 2 $job : -n 2 "$BRUME" eval run

# Binaries for different processors may train together, those of different sources, or on one node, may not.
sources=$("$BRUME" --version | sed 's/.* of sources //')
others=$(echo "$sources" | tr 0-9a-f 1-9a-f0)
LC_ALL=C sed "s/$sources/$others/" "$BRUME" > other_brume
chmod +x other_brume
refused "rank 2 is 'brume" -n 2 $job : -n 2 ./other_brume run "$deck" --set "$profile"
cp "$BRUME" other_brume
echo 'another build' >> other_brume
refused "ranks 0 and 2 on $(hostname) run two builds of brume" -n 2 $job : -n 2 ./other_brume run "$deck" --set "$profile"

# A folder of the same name on another node.
mkdir elsewhere
cp valid.tok elsewhere/train.tok
cp valid.tok elsewhere
refused "rank 2 reads '" -n 2 -wdir "$work" $job : -n 2 -wdir "$work/elsewhere" $job

# A launcher that MPI does not know: four jobs of one rank, of which one says why none begins.
copies='all=
for rank in 0 1 2 3; do env "$1=4" "$2=$rank" $3 & all="$all $!"; done
for process in $all; do code=0; wait $process || code=$?; [ $code -eq 2 ] || exit 1; done
exit 2'
refused_soon 2 'Start them with srun --mpi=pmix, or by mpirun' sh -c "$copies" - SLURM_STEP_NUM_TASKS SLURM_PROCID "$job"
refused_soon 2 'Start them with the mpirun of Open MPI' sh -c "$copies" - PMI_SIZE PMI_RANK "$job"
