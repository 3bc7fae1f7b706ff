#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/deadline.h"

namespace tutti::run {

/// Turns what one rank writes to one stream into whole lines with `[rank] ` before each. A line
/// longer than 64 KiB is broken.
class LineOutput {
 public:
  using Sink = std::function<void(std::string_view)>;

  /// `sink` takes finished text; `prefix` comes before each line.
  LineOutput(std::string prefix, Sink sink) : prefix_(std::move(prefix)), sink_(std::move(sink)) {}

  void take(std::string_view bytes);
  /// The stream ended: what has no end of line gets one.
  void finish();

  static constexpr size_t kLongestLine = 64 << 10;

 private:
  const std::string prefix_;
  const Sink sink_;
  std::string pending_;
  bool after_return_ = false;
};

/// The last lines that a rank wrote, for the report of its death.
class LastLines {
 public:
  static constexpr size_t kLines = 10;

  void take(std::string_view bytes);
  /// Oldest first; an unfinished line is one too.
  std::deque<std::string> lines() const;

 private:
  std::deque<std::string> lines_;
  std::string pending_;
};

/// "[3] ", in a colour of the rank's own if wanted.
std::string rank_prefix(int rank, bool colour);

/// One of the launcher's own streams. It never waits for its reader: what does not go at once is
/// kept, and is_full() asks to bring no more.
class Outlet {
 public:
  explicit Outlet(int descriptor);

  void write(std::string_view bytes);
  /// Writes what goes without waiting.
  void flush();
  bool is_empty() const { return pending_.empty(); }
  bool is_full() const { return pending_.size() >= kFull; }
  /// The error number of the first write that lost something; 0: none did. A reader that left
  /// is no error.
  int failure() const { return failure_; }
  int descriptor() const { return descriptor_; }

  static constexpr size_t kFull = 1 << 20;  // bytes

 private:
  const int descriptor_;
  const size_t piece_;  // what a stream that is ready takes without blocking
  std::string pending_;
  size_t written_ = 0;  // of these
  int failure_ = 0;
};

/// Writes all of it, waiting if need be, until the deadline or an error, whose number it returns; 0
/// is none.
int write_all(int descriptor, std::string_view bytes, Deadline deadline = Deadline::never());

}  // namespace tutti::run
