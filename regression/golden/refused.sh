#!/bin/sh
# What a run prints that cannot begin, goes wrong or is stopped, by its shape, against reviewed texts (shape.sh).
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/golden/shape.sh"
without_terminal=400
job="mpirun -q -n 4 --oversubscribe $BRUME run tiny.toml --set cluster.profile=profile.toml --resume none"
sed 's/^num_layers/num_layer/' tiny.toml > misspelt.toml
sed '1i generation = 1' profile.toml > passes.toml
cp "$BRUME_REGRESSION_DIR/fault/on_disk.toml" .

ended 2 verb "$BRUME" rnu tiny.toml
ended 2 option "$BRUME" run tiny.toml --stepps 3
ended 2 deck mpirun -q -n 4 --oversubscribe "$BRUME" run misspelt.toml
ended 2 value $job --set training.optimizer.lr=-1
ended 2 tokens $job --set data.train=nowhere.tok
ended 2 ranks mpirun -q -n 2 --oversubscribe "$BRUME" run tiny.toml
ended 2 profile-of-generation $job --set cluster.profile=passes.toml
ended 3 nothing-fits $job --set cluster.memory_gib=0.001 --set model.hidden_size=256
ended 3 plan-does-not-fit $job --plan on_disk.toml
ended 6 directory $job --set output.directory=/proc/nowhere
ended 2 not-finite $job --set training.optimizer.lr=1e30 --set training.max_skipped=3 --set output.directory=exploded
ended 75 stopped $job --max-minutes 0.001 --set output.directory=stopped
compare_printed refused
