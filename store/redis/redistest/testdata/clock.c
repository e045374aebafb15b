/* Moves the wall clock of a process by CLOCK_APART seconds. redis-server asks
   for it by gettimeofday alone. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

int gettimeofday(struct timeval *now, void *zone) {
	int failed = syscall(SYS_gettimeofday, now, zone);
	const char *apart = getenv("CLOCK_APART");
	if (!failed && now && apart) now->tv_sec += atol(apart);
	return failed;
}
