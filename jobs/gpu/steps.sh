#!/usr/bin/env bash
# Shows on a machine with a GPU what the bundle does there, step by step, most telling first:
#
#   brume-sm_90/steps.sh first              # does it start, is it right, how fast is a step
#   brume-sm_90/steps.sh perf               # the GPU's profile, a step of GPT 1.3B, what overlaps
#   brume-sm_90/steps.sh sanitizer          # bad accesses and races, by compute-sanitizer
#   brume-sm_90/steps.sh big                # GPT 13B with its optimizer in host memory
#
# All output goes to $OUT/all.log ($OUT: ./brume-gpu), a table of what passed to the end. Environment:
#   LIMIT    seconds, after which no part begins (570)
#   LAYERS   of GPT 13B (8; 40: all of them)
#   MEMORY   of the device that it may use [GiB] (40)
#   HOST     of the host [GiB] (64)
set -u
. "$(cd "$(dirname "$0")" && pwd -P)/environment.sh"
OUT=${OUT:-$PWD/brume-gpu}
work=$OUT/work
mkdir -p "$work"
log=$OUT/all.log
limit=${LIMIT:-570}
results=()
[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# part NAME SECONDS COMMAND...: runs it in $work for at most so long; its last lines are shown, all go into the log.
part() {
  local name=$1 most=$2 left=$((limit - SECONDS)) begin=$SECONDS verdict code
  shift 2
  if [ "$left" -lt 15 ]; then
    results+=("$(printf '%-28s  not started: %d s left' "$name" "$left")")
    return
  fi
  printf '\n===== %s: %s\n' "$name" "$*" | tee -a "$log"
  (cd "$work" && timeout -k 5 $((most < left ? most : left)) "$@") > "$OUT/part.log" 2>&1 < /dev/null
  code=$?
  cat "$OUT/part.log" >> "$log"
  grep -v '^ *$' "$OUT/part.log" | tail -n 14 | cut -c 1-180
  case $code in 0) verdict=ok ;; 77) verdict=skipped ;; 124 | 137) verdict=stopped ;; *) verdict="FAILED ($code)" ;; esac
  results+=("$(printf '%-28s  %4d s  %s' "$name" $((SECONDS - begin)) "$verdict")")
}

machine() {
  uname -srm
  echo "$(nproc) cores, $(grep MemAvailable /proc/meminfo)"
  nvidia-smi
  cat "$bundle/manifest"
}

libraries() {
  local missing=0 program
  echo "library path: $LD_LIBRARY_PATH"
  for program in "$bundle"/bin/* "$bundle"/tests/*; do
    ! ldd "$program" 2>&1 | grep 'not found' || { echo "  ... which $program needs"; missing=1; }
  done
  brume --version && mpirun -n 2 --oversubscribe brume --version && return $missing
}

# Kernels first: each in a fresh process, because a fault of one ends the device's work in that process.
tests() {
  local failed=0
  for test in "$bundle"/tests/$1*; do
    "$test" > one.log 2>&1
    code=$?
    [ $code -eq 0 ] || [ $code -eq 77 ] || failed=1
    echo "$(basename "$test") ($code): $(grep -E '^\[  (PASSED|FAILED)' one.log | tr '\n' ' ')"
    [ $code -eq 0 ] || tail -n 20 one.log
  done
  return $failed
}
tokens() { brume import tokens -o data --valid 0.1 "$bundle/share/brume"; }
train() {  # RANKS PRECISION: the quick start's model on ranks that share the GPU
  mpirun -n "$1" --oversubscribe brume run "$bundle/share/brume/inputs/quickstart.toml" --resume none --set cluster.devices_per_node="$1" \
    --set cluster.memory_gib=16 --set cluster.host_memory_gib=8 --set training.precision="$2" --set training.steps=60 \
    --set output.directory="$2-$1"
}
deck() {  # LAYERS HIDDEN HEADS PRECISION: a GPT
  cat << END
[model]
family      = "gpt"
num_layers  = $1
hidden_size = $2
num_heads   = $3
seq_len     = 2048
vocab_size  = 50304
[training]
steps        = 6
global_batch = 8
precision    = "$4"
[data]
train = "data/train.tok"
[cluster]
nodes            = 1
devices_per_node = 1
memory_gib       = ${MEMORY:-40}
host_memory_gib  = ${HOST:-64}
[output]
directory   = "gpt-$1-$2-$4"
checkpoints = false
trace       = true
log_every   = 1
END
}
# brume_on NAME COMMAND [OPTION...]: the command for that deck
brume_on() { mpirun -n 1 brume "$2" "$1.toml" "${@:3}"; }

export bundle
export -f machine libraries tests tokens train brume_on
first() {
  part libraries 60 bash -c libraries
  part selftest 120 mpirun -n 1 brume selftest
  part "kernels" 120 bash -c 'tests unit_'
  part "streams, NCCL, cuBLASLt" 120 bash -c 'tests gpu_'
  part tokens 30 bash -c tokens
  for precision in fp32 bf16 fp8; do part "quick start in $precision" 90 bash -c "train 1 $precision"; done
  part "quick start on two ranks" 90 bash -c 'train 2 bf16'
  for precision in bf16 fp8; do
    deck 6 2048 16 $precision > "$work/six-$precision.toml"
    part "6 layers of GPT 1.3B, $precision" 150 brume_on "six-$precision" run --resume none
  done
}
perf() {
  [ -f "$work/data/train.tok" ] || part tokens 30 bash -c tokens
  deck 24 2048 16 bf16 > "$work/gpt-1.3b.toml"
  part "profile for GPT 1.3B" 180 brume_on gpt-1.3b profile -o "$OUT/profile.toml"
  part "a step of GPT 1.3B" 300 "$bundle/tests/perf_step" 1
  part "kernels, one by one" 120 "$bundle/tests/perf_kernels"
  part "what offloading hides" 200 mpirun -n 1 "$bundle/tests/perf_overlap" "optimizer offload"
}
sanitizer() {
  export CUDA_MODULE_LOADING=LAZY  # kernels are instrumented as they are loaded: only those that run
  part "memcheck, engine" 240 compute-sanitizer --tool memcheck --error-exitcode 99 "$bundle/tests/gpu_engine" '--gtest_filter=OnGpu.*'
  for kernels in layer_norm attention cross_entropy float8_products; do
    part "racecheck, $kernels" 90 env CUDA_LAUNCH_BLOCKING=1 compute-sanitizer --tool racecheck --error-exitcode 99 "$bundle/tests/unit_$kernels"
  done
}
big() {
  [ -f "$work/data/train.tok" ] || part tokens 30 bash -c tokens
  deck "${LAYERS:-8}" 5120 40 bf16 > "$work/gpt-13b.toml"
  part "GPT 13B" 560 brume_on gpt-13b run --resume none
}

: > "$log"
part machine 60 bash -c machine
for step in "${@:-first}"; do
  case $step in
    first | perf | sanitizer | big) "$step" ;;
    *) echo "no such step: $step" >&2; exit 2 ;;
  esac
done
printf '\n===== %d s; all output: %s\n' "$SECONDS" "$log"
printf '%s\n' "${results[@]}" | tee -a "$log"
! printf '%s\n' "${results[@]}" | grep -q FAILED
