/* Reads files in unusual ways, and prints a sum of what was in them: `reader WAY [DIRECTORY] FILES`. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long sum(unsigned long before, const unsigned char *bytes, size_t length) {
    for (size_t at = 0; at < length; at++) before = (before ^ bytes[at]) * 1099511628211UL;
    return before;
}

/* By the system's calls only, as a signal handler may. */
static unsigned long sum_of(const char *path) {
    unsigned char buffer[4096];
    unsigned long found = 0;
    ssize_t length;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return (unsigned long)errno;
    while ((length = read(file, buffer, sizeof buffer)) > 0) found = sum(found, buffer, (size_t)length);
    close(file);
    return found;
}

static unsigned long sum_of_all(char **paths) {
    unsigned long found = 0;
    for (; *paths; paths++) found = found * 31 + sum_of(*paths);
    return found;
}

/* By the stream, by a mapping, and by a descriptor of the directory. */
static unsigned long sum_otherwise(char **paths) {
    unsigned long found = 0;
    for (; *paths; paths++) {
        unsigned char buffer[4096];
        struct stat about;
        FILE *stream = fopen(*paths, "rb");
        size_t length;
        while (stream && (length = fread(buffer, 1, sizeof buffer, stream)) > 0) found = sum(found, buffer, length);
        if (!stream || fstat(fileno(stream), &about)) exit(1);
        void *mapped = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fileno(stream), 0);
        fclose(stream);
        if (mapped == MAP_FAILED) exit(1);
        found = sum(found, mapped, (size_t)about.st_size);
        munmap(mapped, (size_t)about.st_size);
        char *name = strrchr(*paths, '/');
        *name = 0;
        int directory = open(*paths, O_RDONLY | O_DIRECTORY);
        *name = '/';
        int file = openat(directory, name + 1, O_RDONLY);
        while (file >= 0 && (length = (size_t)read(file, buffer, sizeof buffer)) > 0) found = sum(found, buffer, length);
        close(file);
        close(directory);
    }
    return found;
}

static void wait_for_all(void) {
    int status;
    while (wait(&status) > 0)
        if (status) exit(1);
}

static char *handled;
static unsigned long expected;
static volatile sig_atomic_t right, wrong;

static void handle(int signal) {
    int before = errno;
    (void)signal;
    if (sum_of(handled) == expected) right = 1;
    else wrong = 1;
    errno = before;
}

static void limited(char **paths) {
    struct rlimit limit = {16, 16};
    int opened = 0;
    if (setrlimit(RLIMIT_NOFILE, &limit)) exit(1);
    for (char **path = paths; *path && open(*path, O_RDONLY) >= 0; path++) opened++;
    int error = errno;
    for (int file = 3; file < 16; file++) close(file);
    printf("%d files, then %d; %lx\n", opened, error, sum_of_all(paths));
}

int main(int count, char **words) {
    const char *way = count > 1 ? words[1] : "";
    char **paths = words + 2;
    if (!strcmp(way, "read")) {
        printf("%lx %lx\n", sum_of_all(paths), sum_otherwise(paths));
    } else if (!strcmp(way, "fork")) {
        for (int child = 0; child < 4; child++)
            if (!fork()) _exit(sum_of_all(paths) == 0);
        printf("%lx\n", sum_of_all(paths));
        fflush(stdout);
        wait_for_all();
    } else if (!strcmp(way, "vfork")) {
        words[1] = "read";
        for (int child = 0; child < 3; child++) {
            if (!vfork()) {
                execv(words[0], words);
                _exit(1);
            }
            wait_for_all();
        }
    } else if (!strcmp(way, "signal")) {
        struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
        struct itimerval often = {{0, 300}, {0, 300}};
        handled = paths[0];
        expected = sum_of(handled);
        unsigned long all = sum_of_all(paths);
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &often, NULL);
        for (int round = 0; round < 100; round++) wrong |= sum_of_all(paths) != all;
        printf("%lx %d %d\n", all, (int)right, (int)wrong);
    } else if (!strcmp(way, "limited")) {
        limited(paths);
    } else if (!strcmp(way, "chroot")) {
        if (chroot(paths[0]) || chdir("/")) return 1;
        printf("%lx\n", sum_of_all(paths + 1));
    } else {
        return 2;
    }
    return 0;
}
