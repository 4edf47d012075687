#!/bin/sh
# As slow/large_model.sh, with a model of 60 MB.
BRUME_MIB=256 BRUME_SIZE="--layers 1 --hidden 1024" exec "$BRUME_REGRESSION_DIR/slow/large_model.sh"
