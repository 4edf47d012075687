#!/bin/sh
# Two nodes, for which this machine passes by two names. Ranks that the launcher deals out in turn are numbered node by
# node: tensor parallelism stays within one, and a silent rank is named with its own. Nodes that have other ranks than
# devices are refused within two seconds, with the line that works.
set -eu
unshare -u true 2> /dev/null || { echo "skipped: needs the right to give this machine other names"; exit 77; }
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
complain() { cat log; echo "$1"; exit 1; }

# Open MPI's way to another machine: <name> <command...>
cat > go_to << 'END'
#!/bin/sh
name=$1
shift
exec unshare -u sh -c "hostname $name; $*"
END
chmod +x go_to
# Two nodes of one machine share no memory.
export OMPI_MCA_plm_rsh_agent="$work/go_to" OMPI_MCA_btl=tcp,self
sed 's/^ranks_per_node   = 4/ranks_per_node   = 2/' "${profile#*=}" > profile.toml
set -- "$BRUME" run "$deck" --set cluster.profile=profile.toml --set cluster.nodes=2 --set cluster.devices_per_node=2 \
  --set 'search.stages=[2]' --set 'search.tp=[2]' --set 'search.dp=[1]'

refused_soon 2 'start as many as that, by mpirun --map-by ppr:2:node or srun --ntasks-per-node=2' \
  mpirun -n 4 --host one:3,other:1 "$@"

mpirun -n 4 --host one:4,other:4 --map-by node "$@" --set training.steps=100000 --set training.heartbeat_timeout_s=3 > log 2>&1 &
job=$!
for _ in $(seq 600); do
  if grep -q "$a_step" log; then break; fi
  sleep 0.05
done
sleep 1
# The launcher's second one is the first one on the second node.
for process in /proc/[0-9]*; do
  [ "$(readlink "$process/cwd" 2> /dev/null)" = "$work" ] || continue
  ! tr '\0' '\n' < "$process/environ" 2> /dev/null | grep -q '^OMPI_COMM_WORLD_RANK=1$' || kill -STOP "${process#/proc/}"
done
code=0
wait "$job" || code=$?
[ "$code" -eq 5 ] &&
  grep -q 'rank 2 on other has sent no heartbeat for 3.* last activity was stage 1, .*; ranks .*3 wait for it' log ||
  complain "exit code $code"
