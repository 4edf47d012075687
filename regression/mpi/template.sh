#!/bin/sh
# jobs/mpirun.sh goes on after a killed or a silent rank, and after nothing else; on a signal it ends with a checkpoint and
# 75, leaving nobody behind.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
sed "s/^steps  .*/steps = 400/; s/^checkpoint_every.*/checkpoint_every = 20/; s/^log_every .*/log_every = 10/" "$deck" > deck.toml
sed -i "/^host_memory_gib/a profile = \"${profile#*=}\"" deck.toml

start() { # <directory> <steps>
  sed "s/^directory .*/directory = \"$1\"/; s/^steps .*/steps = $2/" deck.toml > "$1.toml"
  bash "$BRUME_REGRESSION_DIR/../jobs/mpirun.sh" "$1.toml" 4 --oversubscribe > "$1.log" 2>&1 &
  job=$!
  for _ in $(seq 600); do
    if grep -q "^ *[1-9][0-9]*0 .*$a_step" "$1.log"; then break; fi
    sleep 0.05
  done
  launcher=$(pgrep -P "$job" mpirun)
  ranks=$(pgrep -P "$launcher")
}

start killed 400
kill -9 "$(echo "$ranks" | tail -n 1)"
wait "$job"
cat killed.log
grep -q 'a rank was lost (exit code 137): resuming' killed.log
ls killed/checkpoints | grep -qx step-400

start asked 1000000
kill -TERM "$job"
code=0
wait "$job" || code=$?
cat asked.log
[ "$code" -eq 75 ] || { echo "expected exit code 75, got $code"; exit 1; }
stopped=$(sed -n 's/^stopped after \([0-9]*\) of.*/\1/p' asked.log)
[ -f "asked/checkpoints/step-$stopped/manifest.json" ] || { echo "no checkpoint of step '$stopped'"; exit 1; }
sleep 1
for process in $launcher $ranks; do
  case "$(ps -o stat= -p "$process" || true)" in
    "" | Z*) ;;
    *) echo "process $process was left behind"; exit 1 ;;
  esac
done

# A program that ends with one code after the other.
cat > program << 'EOF'
#!/bin/sh
read -r code < codes
sed -i 1d codes
exit "$code"
EOF
chmod +x program
for codes in '5 0' '6 0' '4 0'; do
  echo "$codes" | tr ' ' '\n' > codes
  code=0
  BRUME=./program bash "$BRUME_REGRESSION_DIR/../jobs/mpirun.sh" any.toml 1 --oversubscribe > log 2>&1 || code=$?
  case "$codes: $code, $(wc -l < codes) left" in
    '5 0: 0, 0 left' | '6 0: 6, 1 left' | '4 0: 4, 1 left') ;;
    *) cat log; echo "after $codes it ends with $code"; exit 1 ;;
  esac
done
