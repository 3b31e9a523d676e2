/*
 * Shifts the real-time clock of the process into which it is preloaded by CLOCK_OFFSET_MS milliseconds. Other clocks
 * are not changed.
 */

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long offset_ms(void)
{
    static int is_known;
    static long long offset;
    if (!is_known) {
        const char *text = getenv("CLOCK_OFFSET_MS");
        offset = text ? atoll(text) : 0;
        is_known = 1;
    }
    return offset;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    /*
     * Makes the system call directly. To look up the C library's function may allocate memory, and allocators ask for
     * the time.
     */
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long ms = offset_ms();
        now->tv_sec += ms / 1000;
        now->tv_nsec += (ms % 1000) * 1000000;
        if (now->tv_nsec < 0) {
            now->tv_nsec += 1000000000;
            now->tv_sec -= 1;
        } else if (now->tv_nsec >= 1000000000) {
            now->tv_nsec -= 1000000000;
            now->tv_sec += 1;
        }
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now)
        *now = exact.tv_sec;
    return exact.tv_sec;
}
