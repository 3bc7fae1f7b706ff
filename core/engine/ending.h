#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/base/error.h"

namespace tutti {

/// Records how the communicator ended, for the program's threads. Also sets a flag for each kernel
/// that waits on a GPU without the engine. The lock of the hand-over guards this object.
class Ending {
 public:
  /// Records the error that broke the communicator. Only the first error is kept.
  void break_with(const Error& error) {
    if (!error_) error_ = error;
  }
  const std::optional<Error>& error() const { return error_; }
  /// Records which rank left first.
  void departed(int rank) { departed_ = rank; }
  /// Returns the first rank that left, was lost or is silent, or -1 if none is known.
  int gone_rank() const;
  /// Keeps the flag `word` until raise_all() stores 1 in it.
  void add_word(std::shared_ptr<uint32_t> word);
  void raise_all();

 private:
  std::optional<Error> error_;
  int departed_ = -1;
  std::vector<std::shared_ptr<uint32_t>> words_;
};

}  // namespace tutti
