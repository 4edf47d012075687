#!/bin/sh
# A model of 1.4 GB comes in and goes out bit by bit, in little memory. One of 7B takes 60 GB of disk:
# large_model.py --layers 32 --vocab 32000 --share 0.6 /some/disk
set -eu
command -v python3 > /dev/null || { echo "there is no python3"; exit 77; }
exec python3 "$BRUME_REGRESSION_DIR/slow/large_model.py" --memory-mib "${BRUME_MIB:-512}" ${BRUME_SIZE:-}
