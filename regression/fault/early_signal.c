/* To be preloaded: sends the signal BRUME_EARLY_SIGNAL to brume while libraries initialise
 * themselves. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void ask(void) {
  const char* number = getenv("BRUME_EARLY_SIGNAL");
  if (number != NULL && strcmp(program_invocation_short_name, "brume") == 0) raise(atoi(number));
}
