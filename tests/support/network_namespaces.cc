#include "tests/support/network_namespaces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <thread>

#include "tutti/base/deadline.h"

namespace tutti::test {

namespace {

// Makes a new namespace with a thread that enters it and ends.
Descriptor make_namespace() {
  int fd = -1;
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) == 0) fd = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  }).join();
  if (fd < 0) throw std::runtime_error("cannot make a network namespace");
  return Descriptor(fd);
}

std::string path_of(const Descriptor& ns) {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), ns.get());
}

}  // namespace

std::string NetworkNamespaces::unavailable() {
  if (::geteuid() != 0) return "network namespaces need root";
  try {
    NetworkNamespaces two(2);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

NetworkNamespaces::NetworkNamespaces(int count) : bridge_(make_namespace()) {
  for (int host = 0; host < count; ++host) hosts_.push_back(make_namespace());
  const int bridge = bridge_.get();
  run(bridge, "ip link add br0 type bridge");
  run(bridge, "ip link set br0 up");
  for (int host = 0; host < count; ++host) {
    const int ns = hosts_[static_cast<size_t>(host)].get();
    run(bridge, fmt::format("ip link add port{} type veth peer name {} netns {}", host, kInterface,
                            path(host)));
    run(bridge, fmt::format("ip link set port{} master br0 up", host));
    run(ns, "ip link set lo up");
    run(ns, fmt::format("ip addr add {}/24 dev {}", address(host), kInterface));
    // Duplicate detection would keep the address unusable for a second or two.
    run(ns, fmt::format("ip addr add {}/64 dev {} nodad", address_ipv6(host), kInterface));
    run(ns, fmt::format("ip link set {} up", kInterface));
  }
}

std::string NetworkNamespaces::address(int host) const {
  return fmt::format("10.83.0.{}", host + 1);
}
std::string NetworkNamespaces::address_ipv6(int host) const {
  return fmt::format("fd83::{:x}", host + 1);
}
std::string NetworkNamespaces::path(int host) const {
  return path_of(hosts_.at(static_cast<size_t>(host)));
}

void NetworkNamespaces::within(int host, const std::function<void()>& body) const {
  const int ns = hosts_.at(static_cast<size_t>(host)).get();
  std::exception_ptr failure;
  std::thread([&] {
    try {
      if (::setns(ns, CLONE_NEWNET) != 0) throw std::runtime_error("cannot enter a namespace");
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

pid_t NetworkNamespaces::start(int host, const std::function<int()>& body) const {
  const int ns = hosts_.at(static_cast<size_t>(host)).get();
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 99;
  try {
    if (::setns(ns, CLONE_NEWNET) == 0) code = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "host %d: %s\n", host, error.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

void NetworkNamespaces::cut(int host) {
  run(bridge_.get(), fmt::format("ip link set port{} nomaster", host));
}

void NetworkNamespaces::restore(int host) {
  run(bridge_.get(), fmt::format("ip link set port{} master br0", host));
}

void NetworkNamespaces::run(int ns, const std::string& command) const {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setns(ns, CLONE_NEWNET) == 0)
      ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    ::_exit(98);
  }
  const int code = wait_for_child(child, 10);
  if (code != 0)
    throw std::runtime_error(
        fmt::format("`{}` in a network namespace ended with {}", command, code));
}

int wait_for_child(pid_t child, double seconds) {
  const auto deadline = Deadline::after(seconds);
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child, &status, WNOHANG)) == 0) {
    if (deadline.passed()) ::kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (ended < 0) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace tutti::test
