/* To be preloaded: who opens a file waits for ever, as on a server that does not answer, or is stopped.
 *
 *   BRUME_HANGS_AT     end of its path
 *   BRUME_HANGS_AFTER  set: a file that has to be there
 *   BRUME_HANGS_RANK   of the job, in which it does
 *   BRUME_STOPS        set: after a second, in which others hear of it, the whole process is stopped */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void may_hang(const char* path) {
  const char* asked = getenv("BRUME_HANGS_RANK");
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  const char* end = getenv("BRUME_HANGS_AT");
  if (asked == NULL || rank == NULL || end == NULL || strcmp(asked, rank) != 0) return;
  const size_t length = strlen(path), tail = strlen(end);
  if (length < tail || strcmp(path + length - tail, end) != 0) return;
  const char* first = getenv("BRUME_HANGS_AFTER");
  if (first != NULL && access(first, F_OK) != 0) return;
  if (getenv("BRUME_STOPS") != NULL) {
    sleep(1);
    raise(SIGSTOP);
  }
  for (;;) pause();
}

#define OPEN(name)                                                                 \
  int name(const char* path, int flags, ...) {                                     \
    va_list arguments;                                                             \
    va_start(arguments, flags);                                                    \
    const int mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, int) : 0; \
    va_end(arguments);                                                             \
    static int (*real)(const char*, int, ...);                                     \
    if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #name);                    \
    may_hang(path);                                                                \
    return real(path, flags, mode);                                                \
  }
OPEN(open)
OPEN(open64)

/* What a hardened program calls instead, where it makes no file. */
#define CHECKED_OPEN(name)                                      \
  int name(const char* path, int flags) {                       \
    static int (*real)(const char*, int);                       \
    if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #name); \
    may_hang(path);                                             \
    return real(path, flags);                                   \
  }
CHECKED_OPEN(__open_2)
CHECKED_OPEN(__open64_2)
