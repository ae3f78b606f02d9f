/*
 * The helper program of the benchmarks, in one file so that one call of cc builds it.
 *
 *   helper SLOTS INDEX             the supervised process: records its start time, then waits for its end
 *   helper -d PIDFILE SLOTS INDEX  the same as a daemon with a pid file, for supervisors that need one
 *   helper -k PIDFILE              ends the process of that pid file
 *   helper -r COMMAND...           runs a supervisor as its subreaper: reaps orphans, and kills all
 *                                  descendants on SIGTERM or when the benchmark dies
 *
 * SLOTS is a file with one struct slot per process. A process writes its own slot in shared memory, so it needs
 * no system call after the clock was read, and the benchmark can read the slot at any time.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct slot {
    uint64_t began; /* CLOCK_MONOTONIC, nanoseconds */
    uint64_t pid;   /* written last: whoever sees it sees the time too */
};

static int fail(const char *what) {
    fprintf(stderr, "helper: %s: %s\n", what, strerror(errno));
    return 111;
}

static int serve(uint64_t began, const char *slots, const char *index) {
    long place = atol(index);
    int file = open(slots, O_RDWR | O_CLOEXEC);
    if (file < 0) return fail(slots);
    size_t size = (size_t)(place + 1) * sizeof(struct slot);
    struct slot *all = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (all == MAP_FAILED) return fail("mmap");
    close(file);
    all[place].began = began;
    __atomic_store_n(&all[place].pid, (uint64_t)getpid(), __ATOMIC_RELEASE);
    munmap(all, size);
    for (;;) pause();
}

static int become_daemon(const char *pid_file) {
    pid_t child = fork();
    if (child < 0) return fail("fork");
    if (child == 0) {
        setsid();
        return 0;
    }
    FILE *file = fopen(pid_file, "w");
    if (!file) return fail(pid_file);
    fprintf(file, "%d\n", child);
    fclose(file);
    _exit(0);
}

static int end_by(const char *pid_file) {
    FILE *file = fopen(pid_file, "r");
    int pid = 0;
    if (!file || fscanf(file, "%d", &pid) != 1 || pid <= 1) return fail(pid_file);
    fclose(file);
    return kill(pid, SIGTERM) == 0 || errno == ESRCH ? 0 : fail("kill");
}

/* Kills the children; theirs become ours by that, and are found the next time. */
static void kill_children(void) {
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    if (!proc) return;
    while ((entry = readdir(proc))) {
        char path[300], line[512], state;
        int pid = atoi(entry->d_name), parent = 0;
        if (pid <= 1) continue;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        char *rest = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
        fclose(file);
        if (rest && sscanf(rest + 1, " %c %d", &state, &parent) == 2 && parent == getpid()) kill(pid, SIGKILL);
    }
    closedir(proc);
}

static int reap(char **command) {
    sigset_t handled, before;
    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGHUP);
    /* Blocked, so that no signal arrives between a check and sigwait. The supervisor gets the original mask. */
    sigprocmask(SIG_BLOCK, &handled, &before);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    pid_t child = fork();
    if (child < 0) return fail("fork");
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        execvp(command[0], command);
        _exit(fail(command[0]));
    }
    int ending = 0;
    for (;;) {
        struct timespec moment = {.tv_nsec = 2000000};
        int signal = ending ? sigtimedwait(&handled, NULL, &moment) : sigwaitinfo(&handled, NULL);
        ending |= signal == SIGTERM || signal == SIGHUP;
        if (ending) kill_children();
        pid_t dead;
        while ((dead = waitpid(-1, NULL, WNOHANG)) > 0) continue;
        if (dead < 0 && errno == ECHILD) return 0;
    }
}

int main(int argc, char **argv) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t began = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    if (argc >= 3 && !strcmp(argv[1], "-r")) return reap(argv + 2);
    if (argc == 3 && !strcmp(argv[1], "-k")) return end_by(argv[2]);
    if (argc == 5 && !strcmp(argv[1], "-d")) {
        int failed = become_daemon(argv[2]);
        return failed ? failed : serve(began, argv[3], argv[4]);
    }
    if (argc == 3) return serve(began, argv[1], argv[2]);
    fprintf(stderr, "usage: helper [-d PIDFILE] SLOTS INDEX | -k PIDFILE | -r COMMAND...\n");
    return 100;
}
