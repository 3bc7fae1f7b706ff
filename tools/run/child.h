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

/// The variables of this process.
Variables own_variables();

/// A program to start.
struct Command {
  std::vector<std::string> arguments;
  Variables variables;     // all of them
  std::string folder;      // empty: this one
  int inherited = -1;      // a descriptor that the program keeps under its number
  bool has_input = false;  // standard input is a pipe; otherwise it is empty
  std::vector<int> cores;  // that it may run on; empty: all
};

/// A program that cannot be started, and what a shell would end with: 127 if it is not there, 126
/// if it cannot be executed.
class CannotStart : public Error {
 public:
  CannotStart(const std::string& text, int exit_code)
      : Error(ErrorCode::unavailable, text), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// A program that runs in a process group of its own and dies with the thread that started it.
class Child {
 public:
  /// Throws Error(io), or CannotStart that names the program and the reason.
  explicit Child(const Command& command);
  Child(Child&&) = default;
  Child& operator=(Child&&) = delete;
  /// Kills what is left of it.
  ~Child();

  pid_t pid() const { return pid_; }
  /// Readable once it has ended.
  int descriptor() const { return process_.get(); }
  Descriptor input;   // write end
  Descriptor output;  // read ends, not blocking
  Descriptor errors;

  /// To it and all that it started in its group.
  void signal(int number) const;
  /// Once descriptor() is readable: how it ended. What it left running in its group is killed.
  End reap();

 private:
  pid_t pid_ = -1;
  Descriptor process_;
};

/// A descriptor with the secret in it, to be inherited: read it from its start.
Descriptor hand_over_secret(const std::string& secret);

/// Reads once and appends to `bytes`; false at the end of the stream.
bool read_available(int descriptor, std::string& bytes);

/// All that a stream holds that does not block and that no process writes to; closes it.
std::string drain(Descriptor& stream);

}  // namespace tutti::run
