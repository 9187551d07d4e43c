/* Preloaded: the write number FAILING_NTH to a file below FAILING_FOLDER fails with FAILING_ERRNO and is
 * marked by the file FAILING_MARK; with 0 none fails, and at the end FAILING_MARK says how many there were. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long seen;

static int fails(int file, const char *what)
{
    static __thread int inside;
    const char *folder = getenv("FAILING_FOLDER"), *mark = getenv("FAILING_MARK");
    const char *nth = getenv("FAILING_NTH");
    char link[64], path[4096];
    if (inside || !folder || !mark || !nth)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || strncmp(path, folder, strlen(folder)))
        return 0;
    if (++seen != atol(nth))
        return 0;
    path[length] = 0;
    inside = 1;
    FILE *marked = fopen(mark, "w");
    const char *name = strrchr(path, '/');
    if (marked) {
        fprintf(marked, "%s of %s", what, name ? name + 1 : path);
        fclose(marked);
    }
    inside = 0;
    errno = atoi(getenv("FAILING_ERRNO"));
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size)
{
    return fails(file, "write") ? -1 : NEXT(write)(file, data, size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at)
{
    return fails(file, "pwrite") ? -1 : NEXT(pwrite)(file, data, size, at);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at)
{
    return fails(file, "pwrite") ? -1 : NEXT(pwrite64)(file, data, size, at);
}

int fsync(int file)
{
    return fails(file, "fsync") ? -1 : NEXT(fsync)(file);
}

int posix_fallocate(int file, off_t at, off_t size)
{
    return fails(file, "fallocate") ? errno : NEXT(posix_fallocate)(file, at, size);
}

int posix_fallocate64(int file, off64_t at, off64_t size)
{
    return fails(file, "fallocate") ? errno : NEXT(posix_fallocate64)(file, at, size);
}

__attribute__((destructor)) static void tell(void)
{
    const char *mark = getenv("FAILING_MARK"), *nth = getenv("FAILING_NTH");
    if (mark && nth && !atol(nth)) {
        FILE *file = fopen(mark, "w");
        if (file) {
            fprintf(file, "%ld", seen);
            fclose(file);
        }
    }
}
