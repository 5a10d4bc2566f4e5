/* A disk on which everything takes 50 ms longer to be safe: cc -shared -fPIC -o slow_disk.so slow_disk.c, LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int late(const char *name, int file) {
    struct timespec fifty = {0, 50 * 1000 * 1000};
    nanosleep(&fifty, 0);
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(file);
}

int fsync(int file) { return late("fsync", file); }
int fdatasync(int file) { return late("fdatasync", file); }
