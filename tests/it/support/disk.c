/*
 * Simulates a disk whose machine may lose power, for the processes into which this library is preloaded. The files
 * `db` and `wal` in the folder $FAULTY_DISK have what the disk would have of the embedded store's file and of its log.
 * A page gets there when a sync succeeds. A failed sync of the log forgets which pages it should have written, as the
 * kernel does. A later sync does not write them.
 *
 * The first byte of the file `state` says what a sync of the log does: 0 succeeds, 1 fails, 2 fails and then kills
 * its process. The second byte counts the failed syncs.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 65536

enum { DB, WAL, FILES, NONE = -1 };

struct state {
    _Atomic unsigned char fails;
    _Atomic unsigned char failed;
    atomic_flag lock;
    unsigned char dirty[FILES][PAGES];
};

static struct state *state;
static const char *folder;

__attribute__((constructor)) static void begin(void)
{
    char path[4096];
    folder = getenv("FAULTY_DISK");
    if (!folder)
        return;
    snprintf(path, sizeof path, "%s/state", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *state))
        abort();
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED)
        abort();
    close(fd);
}

static int ends(const char *path, size_t length, const char *with)
{
    size_t n = strlen(with);
    return length >= n && !memcmp(path + length - n, with, n);
}

/* Returns which of the files a descriptor belongs to. */
static int file_of(int fd)
{
    char name[32], path[4096];
    if (!state)
        return NONE;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path);
    if (length < 0)
        return NONE;
    if (ends(path, length, "/dq.db"))
        return DB;
    return ends(path, length, "/dq.db-wal") ? WAL : NONE;
}

static void lock(void)
{
    while (atomic_flag_test_and_set(&state->lock))
        usleep(10);
}

static void unlock(void)
{
    atomic_flag_clear(&state->lock);
}

static int open_image(int file)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, file == DB ? "db" : "wal");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        abort();
    return fd;
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at)
{
    ssize_t written = syscall(SYS_pwrite64, fd, bytes, count, at);
    int file = file_of(fd);
    if (file != NONE && written > 0) {
        lock();
        for (off64_t page = at / PAGE; page <= (at + written - 1) / PAGE; page++) {
            if (page >= PAGES)
                abort();
            state->dirty[file][page] = 1;
        }
        unlock();
    }
    return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    return pwrite64(fd, bytes, count, at);
}

static int sync_file(int fd, long call)
{
    int file = file_of(fd);
    if (file == NONE)
        return (int)syscall(call, fd);
    lock();
    if (file == WAL && state->fails) {
        memset(state->dirty[file], 0, PAGES);
        state->failed++;
        unlock();
        if (state->fails == 2)
            kill(getpid(), SIGKILL);
        errno = EIO;
        return -1;
    }
    int image = open_image(file);
    for (off64_t page = 0; page < PAGES; page++) {
        char bytes[PAGE];
        if (!state->dirty[file][page])
            continue;
        ssize_t n = syscall(SYS_pread64, fd, bytes, PAGE, page * PAGE);
        if (n < 0 || syscall(SYS_pwrite64, image, bytes, n, page * PAGE) != n)
            abort();
        state->dirty[file][page] = 0;
    }
    close(image);
    unlock();
    return 0;
}

int fdatasync(int fd)
{
    return sync_file(fd, SYS_fdatasync);
}

int fsync(int fd)
{
    return sync_file(fd, SYS_fsync);
}

int ftruncate64(int fd, off64_t length)
{
    int failed = (int)syscall(SYS_ftruncate, fd, length);
    int file = file_of(fd);
    if (file != NONE && !failed) {
        lock();
        int image = open_image(file);
        if (syscall(SYS_ftruncate, image, length))
            abort();
        close(image);
        unlock();
    }
    return failed;
}

int ftruncate(int fd, off_t length)
{
    return ftruncate64(fd, length);
}
