#!/bin/sh
# Jobs of one rank that begin where others ended: turns of a job that Slurm requeues, checkpoints of another run, an import
# that was killed, readers and limits that end a job before its last step.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
complain() { cat log; echo "$*"; exit 1; }
slurm= out=log
job() { # <exit code> <directory> <flag...>: with the variables of $slurm, and its steps in the file $out
  want=$1 directory=$2 code=0
  shift 2
  env $slurm "$BRUME" run "$deck" --set "$profile" --set cluster.devices_per_node=1 --set cluster.memory_gib=0.1 \
    --set output.directory="$directory" "$@" 2> log >> "$out" || code=$?
  [ "$code" -eq "$want" ] || complain "exit code $code, expected $want: run in $directory $*"
}
says() { tr -s ' \n' ' ' < log | grep -qF -- "$*" || complain "nobody said '$*'"; }  # lines are wrapped
steps_of() { sed -n 's/^{"step":\([0-9]*\),.*"loss".*/\1/p' "$1/metrics.jsonl" | tr '\n' ' '; }
run_of() { sed -n '1s/.*"run":"\([0-9a-f]*\)".*/\1/p' "$1/metrics.jsonl"; }
one_step="--max-minutes 0.0001"

# Slurm starts a requeued job by the same line: its first turn begins as the line says, the next ones go on.
job 75 turns --resume none $one_step
says 'because of --max-minutes; to go on start it again without --resume'
for turn in 0 1 2; do
  slurm="SLURM_JOB_ID=7 SLURM_RESTART_COUNT=$turn"
  job 75 turns --resume none $one_step
  says "stopped after $((turn + 1)) of 12 steps"
  says 'without --resume, or requeue this job as it is'
done
[ "$(steps_of turns)" = '1 2 3 ' ] && [ -e turns/previous-1 ] && [ ! -e turns/previous-2 ] || complain "a turn began anew"
for turn in 1 2; do
  slurm="SLURM_JOB_ID=8 SLURM_RESTART_COUNT=$turn"
  job 75 turns --resume turns/checkpoints/step-2 $one_step
  says "stopped after $((turn + 2)) of 12 steps"
done
[ "$(steps_of turns)" = '1 2 3 4 ' ] || complain "metrics of a turn are lost"
slurm=

# A checkpoint of another run begins a run: what lies in its directory is no part of it. A run directory is its newest one.
job 0 a --steps 4 --set output.checkpoint_every=2
job 0 b --steps 6 --set output.checkpoint_every=2 --set training.optimizer.lr=1e-3
first=$(run_of b)
job 0 b --steps 6 --resume a
says 'results of an earlier run that this one does not continue are now in b/previous-1'
[ "$(steps_of b)" = '5 6 ' ] && [ "$(ls b/checkpoints)" = step-6 ] || complain "two runs are mixed"
[ -n "$(run_of b)" ] && [ "$(run_of b)" != "$first" ] && [ "$(run_of b)" != "$(run_of a)" ] || complain "two runs have one name"
grep -qF "\"run\": \"$(run_of b)\"" b/checkpoints/step-6/manifest.json || complain "the checkpoint is of another run"
grep -qaF "$(run_of b)" b/run.h5 || complain "run.h5 is of another run"
job 0 b --steps 7
[ "$(steps_of b)" = '5 6 7 ' ] && [ ! -e b/previous-2 ] || complain "the run does not go on"
# Somebody copied it among another run's files.
mkdir -p c/checkpoints
cp -r b/metrics.jsonl b/run.h5 c
cp -r a/checkpoints/step-4 c/checkpoints
job 0 c --steps 5
[ "$(steps_of c)" = '5 ' ] && [ -e c/previous-1/run.h5 ] || complain "metrics of another run go on"
job 2 d --resume decks
says 'Name a run directory or one of its checkpoints'

# Nobody reads on, or the log's disk is full: the training ends as if somebody did.
mkfifo pipe
head -n 2 pipe > head &
out=pipe
job 0 unread --set training.steps=20
says 'the steps cannot be shown: Broken pipe'
out=/dev/full
job 0 unread --set training.steps=21
[ -e unread/checkpoints/step-21/manifest.json ]
out=log

# 75 asks to be started again, which helps only where there is a checkpoint.
job 71 none --set output.checkpoints=false $one_step

# The end of Slurm's time, and one that is left over from another job.
slurm=SLURM_JOB_END_TIME=$(($(date +%s) + 4))
job 75 end --set training.steps=1000000 --set output.log_every=1000000
says "because of the end of Slurm's time (SLURM_JOB_END_TIME); start the same job again"
slurm=SLURM_JOB_END_TIME=1000000000
job 0 end --steps 1
says "SLURM_JOB_END_TIME = 1000000000 is before the job's start: it sets no limit"
slurm=

# Metrics on another disk.
mkdir linked disk
ln -s ../disk/lines linked/metrics.jsonl
ln -s ../disk/run.h5 linked/run.h5
job 0 linked --steps 2
job 0 linked --steps 3
[ -L linked/metrics.jsonl ] && [ -L linked/run.h5 ] && [ "$(steps_of linked)" = '1 2 3 ' ] || complain "a link was replaced"

# An import that was killed in the middle.
for left in new/checkpoints/step-0.tmp newer/hf; do
  mkdir -p $left
  "$BRUME" import hf "$BRUME_REGRESSION_DIR/data/hugging_face/llama_tied" -o ${left%%/*} > log 2>&1 || complain "import hf fails"
  [ -e ${left%%/*}/checkpoints/step-0/manifest.json ]
done
