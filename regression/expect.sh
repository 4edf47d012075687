#!/bin/sh
# expect.sh <exit code> <sentence> <command...>
# Fails unless the command ends within 30 s with that code, says the sentence on exactly one line of its
# output, and leaves no process of its own behind. Runs in a fresh folder with tokens in it.
set -u
code=$1
sentence=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
"$BRUME" import tokens "$BRUME_REGRESSION_DIR" -o . 2>/dev/null || exit 1
head -c 100 train.tok > broken.tok

# Where a test names another standard output, only the log is looked at.
: > out
timeout 30 "$@" >> "${BRUME_STDOUT:-out}" 2>> out
got=$?
cat out
[ "$got" -eq "$code" ] || { echo "expected exit code $code, got $got"; exit 1; }
said=$(grep -cF -- "$sentence" out)
[ "$said" -eq 1 ] || { echo "expected one line with '$sentence', found $said"; exit 1; }
for process in /proc/[0-9]*; do
  [ "$(readlink "$process/cwd" 2> /dev/null)" = "$work" ] || continue
  case "$(cat "$process/comm" 2> /dev/null)" in
    brume | mpiexec* | mpirun* | orte*) echo "left behind: $(tr '\0' ' ' < "$process/cmdline")"; exit 1 ;;
  esac
done
exit 0
