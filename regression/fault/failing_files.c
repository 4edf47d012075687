/* To be preloaded: a call that makes, writes, syncs or renames a file below a folder fails as on a disk that is full or
 * broken.
 *
 *   BRUME_FAILING_FOLDER  the folder, as an absolute path
 *   BRUME_FAILING_RANK    of the job, in which calls fail; all where there is none
 *   BRUME_FAILING_CALL    N: the N-th such call of the process fails; with N = 0 none does, and the process says at its end
 *                         how many there were
 *   BRUME_FAILING_STAYS   set: so do all that come after it
 *   BRUME_FAILING_ERROR   the error's number (5: EIO, 28: ENOSPC)
 *   BRUME_SLOW_SYNC_US    set: each fsync takes so many microseconds longer
 *   BRUME_SLOW_READ_US    set: so does each pread of less than 4 KiB, which is not one of a whole file */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;

static const char* folder(void) {
  const char* asked = getenv("BRUME_FAILING_RANK");
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  if (asked != NULL && strcmp(asked, rank != NULL ? rank : "0") != 0) return NULL;
  return getenv("BRUME_FAILING_FOLDER");
}

static int is_below(const char* path) {
  const char* root = folder();
  return root != NULL && strncmp(path, root, strlen(root)) == 0;
}

static int fails(int counts) {
  if (!counts) return 0;
  const char* which = getenv("BRUME_FAILING_CALL");
  const char* error = getenv("BRUME_FAILING_ERROR");
  const long failing = which != NULL ? atol(which) : 0, call = ++calls;
  if (failing == 0 || call < failing) return 0;
  if (call > failing && getenv("BRUME_FAILING_STAYS") == NULL) return 0;
  errno = error != NULL ? atoi(error) : EIO;
  return 1;
}

static int path_fails(const char* path) {
  char whole[PATH_MAX];
  if (path[0] == '/') return fails(is_below(path));
  if (getcwd(whole, sizeof whole) == NULL) return 0;
  const size_t length = strlen(whole);
  snprintf(whole + length, sizeof whole - length, "/%s", path);
  return fails(is_below(whole));
}

static int file_is_below(int file) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return is_below(path);
}

static int file_fails(int file) { return fails(file_is_below(file)); }

__attribute__((destructor)) static void say(void) {
  const char* which = getenv("BRUME_FAILING_CALL");
  if (folder() != NULL && which != NULL && atol(which) == 0)
    fprintf(stderr, "calls of files: %ld\n", (long)calls);
}

/* As POSIX writes it: ISO C has no cast of an object's address to a function's. */
#define REAL(result, name, ...)      \
  static result (*real)(__VA_ARGS__); \
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #name)

#define OPEN(name)                                       \
  int name(const char* path, int flags, ...) {           \
    va_list arguments;                                   \
    va_start(arguments, flags);                          \
    const int mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, int) : 0; \
    va_end(arguments);                                   \
    REAL(int, name, const char*, int, ...);              \
    return (flags & O_CREAT) && path_fails(path) ? -1 : real(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define PWRITE(name)                                                  \
  ssize_t name(int file, const void* data, size_t bytes, off_t at) {  \
    REAL(ssize_t, name, int, const void*, size_t, off_t);             \
    return file_fails(file) ? -1 : real(file, data, bytes, at);       \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PREAD(name)                                                             \
  ssize_t name(int file, void* data, size_t bytes, off_t at) {                  \
    REAL(ssize_t, name, int, void*, size_t, off_t);                             \
    const char* slow = getenv("BRUME_SLOW_READ_US");                            \
    if (slow != NULL && bytes < 4096 && file_is_below(file)) usleep((useconds_t)atol(slow)); \
    return real(file, data, bytes, at);                                         \
  }
PREAD(pread)
PREAD(pread64)

ssize_t write(int file, const void* data, size_t bytes) {
  REAL(ssize_t, write, int, const void*, size_t);
  return file_fails(file) ? -1 : real(file, data, bytes);
}

int fsync(int file) {
  REAL(int, fsync, int);
  const char* slow = getenv("BRUME_SLOW_SYNC_US");
  if (file_fails(file)) return -1;
  if (slow != NULL && file_is_below(file)) usleep((useconds_t)atol(slow));
  return real(file);
}

int mkdir(const char* path, mode_t mode) {
  REAL(int, mkdir, const char*, mode_t);
  return path_fails(path) ? -1 : real(path, mode);
}

int rename(const char* from, const char* to) {
  REAL(int, rename, const char*, const char*);
  return path_fails(from) ? -1 : real(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  REAL(int, renameat2, int, const char*, int, const char*, unsigned);
  return path_fails(from) ? -1 : real(from_folder, from, to_folder, to, flags);
}
