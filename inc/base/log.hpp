/// @file Log lines for people, on stderr. Results go to stdout or into files, never here.
#pragma once

#include <spdlog/spdlog.h>

namespace brume::log {

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

/// Sends log lines to stderr, broken at spaces where that is a terminal. A rank other than 0 logs
/// warnings and errors only.
///
/// @param rank     rank in the job, written before each line when the job has several ranks
/// @param size     ranks in the job
/// @param verbose  also debug lines
void start(int rank, int size, bool verbose);

/// The verbosity that the last start() requested.
bool verbose();

/// Whether the last start() made this rank the one that speaks for the job.
bool leads();

}  // namespace brume::log
