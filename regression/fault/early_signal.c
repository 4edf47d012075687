/* To be preloaded: sends the signal BRUME_EARLY_SIGNAL to brume while libraries initialise
 * themselves. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

__attribute__((constructor)) static void ask(void) {
  char program[16] = "";
  const char* number = getenv("BRUME_EARLY_SIGNAL");
  if (number != NULL && prctl(PR_GET_NAME, program) == 0 && strcmp(program, "brume") == 0)
    raise(atoi(number));
}
