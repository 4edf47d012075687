/// @file The program: reads the command line, runs its command, turns its end into an exit code.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/session.hpp"
#include "command_line.hpp"
#include "signals.hpp"

namespace {

using namespace brume;

/// A job may keep open as many files as this process may allow itself: hundreds of token files are
/// more than the usual 1024. No library makes a table of many entries for so many.
void allow_open_files() {
  constexpr rlim_t enough = 1 << 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough) return;
  limit.rlim_cur = std::min(limit.rlim_max, enough);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Reads the command line and calls its verb. @return the exit code
int called(int argc, char** argv) {
  app::CommandLine line;
  try {
    line.cli.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    throw Error(Failure::input, line.unexpected());
  } catch (const CLI::ParseError& error) {
    require(error.get_exit_code() == 0, Failure::input,
            "{}\n`see `brume --help` and `brume VERB --help`", error.what());
    line.cli.exit(error);
    require(bool(std::cout.flush()), Failure::storage, "standard output cannot be written");
    return 0;
  }
  app::require_whole_paths(line.cli);
  if (!line.verb) {
    std::fputs(line.cli.help().c_str(), stderr);
    return int(Failure::input);
  }
  log::start(0, 1, line.verbose);
  if (!line.cli.got_subcommand("run")) app::release_signals();  // run answers them
  allow_open_files();
  // A file size limit then shows as a failed write, which names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  const int code = line.verb();
  require(std::fflush(stdout) == 0 && std::ferror(stdout) == 0, Failure::storage,
          "standard output cannot be written");
  return code;
}

/// A lack of memory that nobody catches, before main() or in a thread, ends the job as elsewhere.
std::terminate_handler end_otherwise = nullptr;
void end_uncaught() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    comm::Session::let_rank_0_speak();  // memory mostly ends for all ranks at once
    std::fprintf(stderr, "brume: %s\n", memory_ran_out);
    comm::Session::abort(int(Failure::resource));
    ::_exit(int(Failure::resource));
  } catch (...) {
  }
  end_otherwise();
}

void before_libraries() {
  app::hold_signals();
  end_otherwise = std::set_terminate(end_uncaught);
}

/// The loader calls it before libraries initialise themselves, which takes a good part of the time
/// until main(): a request that comes meanwhile would kill the process.
[[gnu::section(".preinit_array"), gnu::used]] void (*const preinit)() = before_libraries;

}  // namespace

int main(int argc, char** argv) {
  try {
    log::start(0, 1, false);
    return called(argc, argv);
  } catch (const std::exception& error) {
    const Error meant = error_of(error);
    comm::Session::let_rank_0_speak();  // all ranks have the same command line
    log::error("brume: {}", meant.what());
    return int(meant.failure());
  }
}
