/* A library to preload, which gives the TCP sockets of a program the congestion control that
 * BENCH_TCP_CONGESTION names:
 * LD_PRELOAD=libcongestion.so BENCH_TCP_CONGESTION=cubic program */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Accepted sockets inherit the congestion control of the listening socket. */
int socket(int domain, int type, int protocol) {
  static int (*original)(int, int, int);
  if (!original) {
    /* dlsym returns a data pointer. POSIX allows to use it as a function pointer. */
    void* found = dlsym(RTLD_NEXT, "socket");
    memcpy(&original, &found, sizeof original);
  }
  const int descriptor = original(domain, type, protocol);
  const char* name = getenv("BENCH_TCP_CONGESTION");
  const int is_tcp = (domain == AF_INET || domain == AF_INET6) &&
                     (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM;
  if (descriptor < 0 || !name || !*name || !is_tcp) return descriptor;
  if (setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) != 0) {
    /* A figure that is labelled cubic must not be measured with anything else. */
    fprintf(stderr, "BENCH_TCP_CONGESTION=%s: not available on this machine\n", name);
    abort();
  }
  return descriptor;
}
