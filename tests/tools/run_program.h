#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/descriptor.h"

namespace tutti::test {

/// A program under test. Its output is kept in memory.
class Program {
 public:
  /// `variables` ("A=b") are added to the environment. `begin` runs last in the child. Before it no
  /// signal is ignored or blocked, whatever started the test.
  explicit Program(const std::vector<std::string>& words,
                   const std::vector<std::string>& variables = {},
                   const std::function<void()>& begin = nullptr);
  ~Program();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Reads until the output contains `text`. Returns false if the program ends or 20 s pass first.
  bool wait_for(const std::string& text);
  /// Reads to the end, and kills the program after `seconds`. Returns the exit code, or 128 + the
  /// signal that killed it.
  int finish(double seconds = 30);

  const std::string& output() const { return output_; }
  const std::string& errors() const { return errors_; }
  double seconds() const { return seconds_; }  // from start to end

 private:
  bool read_some(double seconds);

  pid_t pid_;
  Descriptor out_, err_;
  std::string output_, errors_;
  double begin_ = 0;
  double seconds_ = 0;
};

/// True if some process other than this one has `word` on its command line.
bool is_running(const std::string& word);
/// Waits until is_running() is false or `seconds` have passed; returns its last result.
bool is_running_after(const std::string& word, double seconds);

}  // namespace tutti::test
