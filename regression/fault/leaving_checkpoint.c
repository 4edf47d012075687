/* To be preloaded: the folder BRUME_LEAVING_CHECKPOINT gets another name when a process opens its
 * manifest for the second time, after it has been found whole. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* fortified headers declare __open_2 with two arguments */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_int times;

static void note(const char* path) {
  const char* folder = getenv("BRUME_LEAVING_CHECKPOINT");
  char manifest[PATH_MAX], gone[PATH_MAX];
  if (folder == NULL) return;
  snprintf(manifest, sizeof manifest, "%s/manifest.json", folder);
  snprintf(gone, sizeof gone, "%s.gone", folder);
  if (strcmp(path, manifest) == 0 && ++times == 2) rename(folder, gone);
}

/* As POSIX writes it: ISO C has no cast of an object's address to a function's. */
#define OPEN(name)                                              \
  int name(const char* path, int flags, ...) {                  \
    static int (*real)(const char*, int, ...);                  \
    if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #name); \
    va_list arguments;                                          \
    va_start(arguments, flags);                                 \
    const int makes = flags & (O_CREAT | O_TMPFILE);            \
    const int mode = makes ? va_arg(arguments, int) : 0;        \
    va_end(arguments);                                          \
    note(path);                                                 \
    return real(path, flags, mode);                             \
  }
OPEN(open)
OPEN(open64)
OPEN(__open_2) /* hardened builds call it for open */
OPEN(__open64_2)
