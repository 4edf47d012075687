#!/bin/sh
# As mpi/resident.sh, with ten thousand steps.
BRUME_STEPS=10000 exec "$BRUME_REGRESSION_DIR/mpi/resident.sh"
