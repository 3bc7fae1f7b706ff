#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/descriptor.h"

namespace tutti::test {

/// A program under test, with its output in memory.
class Program {
 public:
  /// `variables`: "A=b", beside those that are there. `begin` is called in the child last of all;
  /// signals are neither ignored nor blocked before it, whatever started the test.
  explicit Program(const std::vector<std::string>& words,
                   const std::vector<std::string>& variables = {},
                   const std::function<void()>& begin = nullptr);
  ~Program();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Reads until its output holds `text`; false if it ends or 20 s pass before.
  bool wait_for(const std::string& text);
  /// Reads to the end; the exit code, or 128 + the signal that killed it. Kills it after `seconds`.
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
/// The same, once it is false or `seconds` passed.
bool is_running_after(const std::string& word, double seconds);

}  // namespace tutti::test
