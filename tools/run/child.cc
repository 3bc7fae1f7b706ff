#include "tools/run/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tools/inheritance.h"
#include "tutti/base/error.h"

extern char** environ;

namespace tutti::run {

namespace {

struct Pipe {
  Descriptor reader, writer;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error("cannot make a pipe", errno);
    reader = Descriptor(ends[0]);
    writer = Descriptor(ends[1]);
  }
};

// Everything that the child needs between fork and exec. It is made before the fork, because the
// child may only call functions that are safe while another thread holds a lock.
struct Preparation {
  std::vector<char*> arguments, variables;
  std::vector<std::string> texts;
  cpu_set_t cores;

  explicit Preparation(const Command& command) {
    for (const auto& [name, value] : command.variables)
      texts.push_back(fmt::format("{}={}", name, value));
    for (auto& text : texts) variables.push_back(text.data());
    for (const auto& word : command.arguments) arguments.push_back(const_cast<char*>(word.data()));
    variables.push_back(nullptr);
    arguments.push_back(nullptr);
    CPU_ZERO(&cores);
    for (const int core : command.cores) CPU_SET(static_cast<size_t>(core), &cores);
  }
};

// Turns the forked child into the program. Does not return.
[[noreturn]] void become(const Command& command, const Preparation& preparation,
                         const std::array<int, 3>& streams, int failure, pid_t parent) {
  const auto fail = [&] {
    const int reason = errno;
    [[maybe_unused]] const auto written = ::write(failure, &reason, sizeof reason);
    ::_exit(127);
  };
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent died before the prctl
  for (int stream = 0; stream < 3; ++stream)
    if (::dup2(streams[static_cast<size_t>(stream)], stream) < 0) fail();
  if (command.inherited >= 0) ::fcntl(command.inherited, F_SETFD, 0);
  if (!command.folder.empty() && ::chdir(command.folder.c_str()) != 0) fail();
  if (!command.cores.empty() &&
      ::sched_setaffinity(0, sizeof preparation.cores, &preparation.cores) != 0)
    fail();
  hand_on_inheritance();
  environ = const_cast<char**>(preparation.variables.data());
  ::execvp(preparation.arguments[0], preparation.arguments.data());
  fail();
  ::_exit(127);
}

// Returns a hint about the user's likely mistake, or nothing.
std::string advice(const Command& command, int reason) {
  const auto& program = command.arguments.front();
  std::error_code status;
  const auto is_file = [&](const std::filesystem::path& path) {
    return std::filesystem::is_regular_file(path, status);
  };
  const auto file = std::filesystem::path(command.folder) / program;
  if (reason != ENOENT || !is_file(file) || ::access(file.c_str(), X_OK) != 0) return "";
  if (program.find('/') == program.npos)
    return fmt::format("; it is not in PATH, but in this folder: write ./{}", program);
  return "; it is there, but what it needs to run (its interpreter or loader) is not";
}

}  // namespace

Variables own_variables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    if (const auto equals = line.find('='); equals != line.npos)
      variables.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return variables;
}

Child::Child(const Command& command) {
  const Preparation preparation(command);
  Pipe in, out, err, failure;
  Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::array<int, 3> streams = {command.has_input ? in.reader.get() : nothing.get(),
                                      out.writer.get(), err.writer.get()};
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw system_error("cannot start a process", errno);
  if (pid_ == 0) become(command, preparation, streams, failure.writer.get(), parent);

  ::setpgid(pid_, pid_);  // the child does this too, but a signal may come first
  process_ = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  failure.writer.reset();
  int reason = 0;
  if (::read(failure.reader.get(), &reason, sizeof reason) == sizeof reason) {
    reap();
    throw CannotStart(fmt::format("cannot start {}{}: {}{}", command.arguments.front(),
                                  command.folder.empty() ? "" : " in " + command.folder,
                                  std::strerror(reason), advice(command, reason)),
                      reason == ENOENT ? 127 : 126);
  }
  if (!process_) {
    const int error_number = errno;
    signal(SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    throw system_error("cannot watch a process", error_number);
  }
  if (command.has_input) input = std::move(in.writer);
  if (input) ::fcntl(input.get(), F_SETFL, O_NONBLOCK);
  output = std::move(out.reader);
  errors = std::move(err.reader);
  for (const int fd : {output.get(), errors.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
}

Child::~Child() {
  if (!process_ || pid_ < 0) return;
  signal(SIGKILL);
  reap();
}

void Child::signal(int number) const {
  if (pid_ > 0) ::kill(-pid_, number);
}

End Child::reap() {
  siginfo_t info{};
  // While the ended process is not reaped, its pid cannot be reused.
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
  signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
  End end;
  (info.si_code == CLD_EXITED ? end.code : end.signal) = info.si_status;
  return end;
}

Descriptor hand_over_secret(const std::string& secret) {
  Descriptor file(::memfd_create("tutti-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file ||
      ::write(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size()))
    throw system_error("cannot hand over the job's secret", errno);
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  return file;
}

std::string drain(Descriptor& stream) {
  constexpr size_t kMost = 1 << 20;  // most bytes that a pipe holds
  std::string bytes;
  while (stream && bytes.size() < kMost) {
    const auto before = bytes.size();
    if (!read_available(stream.get(), bytes) || bytes.size() == before) break;
  }
  stream.reset();
  return bytes;
}

bool read_available(int descriptor, std::string& bytes) {
  char buffer[64 << 10];
  while (true) {
    const auto got = ::read(descriptor, buffer, sizeof buffer);
    if (got > 0) return bytes.append(buffer, static_cast<size_t>(got)), true;
    if (got == 0) return false;
    if (errno == EAGAIN) return true;
    if (errno != EINTR) return false;
  }
}

}  // namespace tutti::run
