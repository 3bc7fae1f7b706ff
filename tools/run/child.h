#pragma once

#include <sched.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "tools/run/deaths.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"

namespace tutti::run {

using Variables = std::map<std::string, std::string>;

/// Returns the variables of this process.
Variables own_variables();

/// A program to start.
struct Command {
  std::vector<std::string> arguments;
  Variables variables;     // the whole environment of the program
  std::string folder;      // working folder; empty: this process's
  int inherited = -1;      // a descriptor that stays open in the program under its number
  bool has_input = false;  // standard input is a pipe; otherwise it is empty
  std::vector<int> cores;  // cores on which it may run; empty: all
};

/// A program that cannot be started. exit_code() is what a shell would return: 127 if the program
/// does not exist, 126 if it cannot be executed.
class CannotStart : public Error {
 public:
  CannotStart(const std::string& text, int exit_code)
      : Error(ErrorCode::unavailable, text), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// A program that runs in its own process group and dies with the thread that started it.
class Child {
 public:
  /// Throws Error(io), or CannotStart that names the program and the reason.
  explicit Child(const Command& command);
  Child(Child&&) = default;
  Child& operator=(Child&&) = delete;
  /// Kills the processes that are left in its group.
  ~Child();

  pid_t pid() const { return pid_; }
  /// Becomes readable once the program has ended.
  int descriptor() const { return process_.get(); }
  Descriptor input;   // write end, non-blocking
  Descriptor output;  // read ends, non-blocking
  Descriptor errors;

  /// Sends a signal to every process of its group.
  void signal(int number) const;
  /// Returns how the program ended, once descriptor() is readable. Kills what it left running in
  /// its group.
  End reap();

 private:
  pid_t pid_ = -1;
  Descriptor process_;
};

/// Returns an inheritable descriptor that holds the secret. It must be read from offset 0.
Descriptor hand_over_secret(const std::string& secret);

/// Reads once and appends to `bytes`. Returns false at the end of the stream.
bool read_available(int descriptor, std::string& bytes);

/// Returns everything that a non-blocking stream still holds, and closes it. No process may write
/// to it any more.
std::string drain(Descriptor& stream);

}  // namespace tutti::run
