/* A program that does what its seed says to the files of a directory, and prints what it saw. With
   and without local copies it must see the same. Usage: random_program SEED DIRECTORY STEPS */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t state, seen = 14695981039346656037ull;
static char root[1024];

static unsigned below(unsigned bound) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33) % bound;
}

static void see(const void *bytes, size_t length) {
    for (size_t at = 0; at < length; at++) seen = (seen ^ ((const unsigned char *)bytes)[at]) * 1099511628211ull;
}

static void see_number(long number) { see(&number, sizeof number); }

/* The same file by names that differ. `..` and double slashes are among them. */
static void path(char *to, size_t size, unsigned directory, unsigned file) {
    switch (below(5)) {
    case 0: snprintf(to, size, "%s/d%u/f%u", root, directory, file); break;
    case 1: snprintf(to, size, "%s//d%u/./f%u", root, directory, file); break;
    case 2: snprintf(to, size, "%s/d%u/../d%u/f%u", root, below(3), directory, file); break;
    case 3: snprintf(to, size, "d%u/f%u", directory, file); break;
    default: snprintf(to, size, "./d%u//f%u", directory, file); break;
    }
}

static void check_identity(int descriptor, const char *name) {
    struct stat by_descriptor, by_name;
    if (fstat(descriptor, &by_descriptor) || stat(name, &by_name)) return;
    int same = by_descriptor.st_dev == by_name.st_dev && by_descriptor.st_ino == by_name.st_ino &&
               by_descriptor.st_mode == by_name.st_mode && by_descriptor.st_size == by_name.st_size &&
               by_descriptor.st_nlink == by_name.st_nlink && by_descriptor.st_uid == by_name.st_uid &&
               by_descriptor.st_mtim.tv_sec == by_name.st_mtim.tv_sec &&
               by_descriptor.st_mtim.tv_nsec == by_name.st_mtim.tv_nsec &&
               by_descriptor.st_ctim.tv_nsec == by_name.st_ctim.tv_nsec &&
               by_descriptor.st_blocks == by_name.st_blocks;
    if (!same) {
        printf("another identity: %s\n", name);
        exit(3);
    }
}

static void read_all(int descriptor) {
    char buffer[8192];
    ssize_t length;
    while ((length = read(descriptor, buffer, sizeof buffer)) > 0) see(buffer, length);
    see_number(length);
}

static void step(void) {
    char name[1200], other[1200], buffer[4096];
    path(name, sizeof name, below(3), below(8));
    path(other, sizeof other, below(3), below(8));
    int descriptor;
    /* Mostly reads: a file that was written is not served again. */
    switch (below(5) ? below(8) : below(20)) {
    case 0: case 1: case 2:
        descriptor = open(name, O_RDONLY);
        if (descriptor < 0) { see_number(errno); break; }
        check_identity(descriptor, name);
        read_all(descriptor);
        close(descriptor);
        break;
    case 3: case 4: {
        FILE *stream = fopen(name, "r");
        if (!stream) { see_number(errno); break; }
        fseek(stream, below(3000), SEEK_SET);
        see(buffer, fread(buffer, 1, below(sizeof buffer), stream));
        fclose(stream);
        break;
    }
    case 5: {
        descriptor = open(name, O_RDONLY);
        struct stat found;
        if (descriptor < 0 || fstat(descriptor, &found) || !found.st_size) { if (descriptor >= 0) close(descriptor); break; }
        void *map = mmap(0, found.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        close(descriptor);
        if (map != MAP_FAILED) { see(map, found.st_size); munmap(map, found.st_size); }
        break;
    }
    case 6: {
        snprintf(buffer, sizeof buffer, "d%u", below(3));
        int directory = open(buffer, O_RDONLY | O_DIRECTORY);
        snprintf(buffer, sizeof buffer, "f%u", below(8));
        descriptor = openat(directory, buffer, O_RDONLY);
        see_number(descriptor >= 0);
        if (descriptor >= 0) { read_all(descriptor); close(descriptor); }
        if (directory >= 0) close(directory);
        break;
    }
    case 7:
        if (!fork()) {
            descriptor = open(name, O_RDONLY);
            if (descriptor >= 0) read_all(descriptor);
            _exit(seen % 251);
        } else {
            int status;
            wait(&status);
            see_number(WEXITSTATUS(status));
        }
        break;
    case 8:
        descriptor = open(name, O_RDONLY);
        unlink(name);
        if (descriptor >= 0) { read_all(descriptor); close(descriptor); }
        break;
    case 9:
        descriptor = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (descriptor >= 0) { see_number(write(descriptor, "0123456789012345678901234567890123456789", 20 + below(20))); close(descriptor); }
        break;
    case 10:
        descriptor = open(name, O_RDWR);
        if (descriptor >= 0) {
            see_number(pwrite(descriptor, "changed", 7, below(2000)));
            read_all(descriptor);
            close(descriptor);
        }
        break;
    case 11: {
        FILE *stream = fopen(name, "a");
        if (stream) { fputs("appended", stream); fclose(stream); }
        break;
    }
    case 12: see_number(rename(name, other)); break;
    case 13: see_number(truncate(name, below(5000))); break;
    case 14: see_number(link(name, other)); break;
    case 15:
        snprintf(buffer, sizeof buffer, "../d%u/f%u", below(3), below(8));
        see_number(symlink(buffer, other));
        break;
    case 16: {
        snprintf(name, sizeof name, "%s/d%u", root, below(3));
        snprintf(other, sizeof other, "d%u", below(3));
        see_number(renameat2(AT_FDCWD, name, AT_FDCWD, other, RENAME_EXCHANGE));
        break;
    }
    case 17:
        snprintf(buffer, sizeof buffer, "%s/d%u", root, below(3));
        see_number(chdir(buffer));
        snprintf(buffer, sizeof buffer, "f%u", below(8));
        descriptor = open(buffer, O_RDONLY | O_NOFOLLOW);
        see_number(descriptor >= 0);
        if (descriptor >= 0) { read_all(descriptor); close(descriptor); }
        see_number(chdir(root));
        break;
    case 18: {
        struct stat found;
        int result = lstat(name, &found);
        see_number(result);
        if (!result) { see_number(found.st_size); see_number(found.st_nlink); }
        break;
    }
    default:
        usleep(below(3000));
        break;
    }
}

int main(int count, char **words) {
    if (count != 4 || !realpath(words[2], root) || chdir(root)) return 2;
    state = strtoull(words[1], 0, 10) * 2654435761u + 1;
    for (unsigned steps = atoi(words[3]), at = 0; at < steps; at++) step();
    printf("%016llx\n", (unsigned long long)seen);
    return 0;
}
