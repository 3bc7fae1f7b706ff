#include "tests/tools/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tutti/base/deadline.h"

namespace tutti::test {

namespace {

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

}  // namespace

Program::Program(const std::vector<std::string>& words, const std::vector<std::string>& variables,
                 const std::function<void()>& begin)
    : begin_(now()) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0)
    throw std::runtime_error("pipe");
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    // Set as a user would to avoid the advice about it.
    ::setenv("OMP_NUM_THREADS", "1", 0);
    for (const auto& variable : variables) ::putenv(const_cast<char*>(variable.c_str()));
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (begin) begin();
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_ = Descriptor(out[0]);
  err_ = Descriptor(err[0]);
}

Program::~Program() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Program::signal(int number) const { ::kill(pid_, number); }

bool Program::read_some(double seconds) {
  std::array<pollfd, 2> entries = {
      {{out_ ? out_.get() : -1, POLLIN, 0}, {err_ ? err_.get() : -1, POLLIN, 0}}};
  if (!out_ && !err_) return false;
  if (::poll(entries.data(), entries.size(), static_cast<int>(seconds * 1000) + 1) <= 0)
    return false;
  char bytes[4096];
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].revents) continue;
    const auto got = ::read(entries[i].fd, bytes, sizeof bytes);
    if (got > 0)
      (i == 0 ? output_ : errors_).append(bytes, static_cast<size_t>(got));
    else
      (i == 0 ? out_ : err_).reset();
  }
  return true;
}

bool Program::wait_for(const std::string& text) {
  const double end = now() + 20;
  while (output_.find(text) == output_.npos && errors_.find(text) == errors_.npos)
    if (now() > end || !read_some(end - now())) return false;
  return true;
}

int Program::finish(double seconds) {
  const double end = now() + seconds;
  while ((out_ || err_) && now() < end) read_some(end - now());
  if (out_ || err_) ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  seconds_ = now() - begin_;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool is_running(const std::string& word) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != name.npos || name == std::to_string(::getpid()))
      continue;
    // Reading fails if the process ends meanwhile.
    std::ostringstream line;
    line << std::ifstream(entry.path() / "cmdline").rdbuf();
    if (line.str().find(word) != std::string::npos) return true;
  }
  return false;
}

bool is_running_after(const std::string& word, double seconds) {
  const double end = now() + seconds;
  while (is_running(word)) {
    if (now() > end) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace tutti::test
