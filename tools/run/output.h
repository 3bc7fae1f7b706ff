#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/deadline.h"

namespace tutti::run {

/// Splits what one rank writes to one stream into whole lines, each with `[rank] ` before it. A
/// line longer than 64 KiB is broken.
class LineOutput {
 public:
  using Sink = std::function<void(std::string_view)>;

  /// `sink` receives finished text. `prefix` is put before each line.
  LineOutput(std::string prefix, Sink sink) : prefix_(std::move(prefix)), sink_(std::move(sink)) {}

  void take(std::string_view bytes);
  /// Ends the stream. An unfinished line gets an end of line.
  void finish();

  static constexpr size_t kLongestLine = 64 << 10;

 private:
  const std::string prefix_;
  const Sink sink_;
  std::string pending_;
  bool after_return_ = false;
};

/// Keeps the last lines that a rank wrote, for the report of its failure.
class LastLines {
 public:
  static constexpr size_t kLines = 10;

  void take(std::string_view bytes);
  /// Returns the lines, oldest first. An unfinished line counts as one.
  std::deque<std::string> lines() const;

 private:
  std::deque<std::string> lines_;
  std::string pending_;
};

/// Returns "[3] ", with a colour per rank if `colour` is true.
std::string rank_prefix(int rank, bool colour);

/// One of the launcher's own streams. It never waits for its reader: bytes that cannot be written
/// immediately are kept. While is_full() is true, the caller should bring no more.
class Outlet {
 public:
  explicit Outlet(int descriptor);

  void write(std::string_view bytes);
  /// Writes as much as the stream takes without blocking.
  void flush();
  bool is_empty() const { return pending_.empty(); }
  bool is_full() const { return pending_.size() >= kFull; }
  /// Returns the error number of the first write that lost bytes, or 0. A reader that left does not
  /// count.
  int failure() const { return failure_; }
  int descriptor() const { return descriptor_; }

  static constexpr size_t kFull = 1 << 20;  // bytes

 private:
  const int descriptor_;
  const size_t piece_;  // bytes that a ready stream takes without blocking
  std::string pending_;
  size_t written_ = 0;  // bytes of pending_ that are written
  int failure_ = 0;
};

/// Writes all bytes, and waits for the reader, until the deadline or an error. Returns the error
/// number, or 0.
int write_all(int descriptor, std::string_view bytes, Deadline deadline = Deadline::never());

}  // namespace tutti::run
