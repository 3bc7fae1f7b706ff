#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/base/error.h"

namespace tutti {

/// Tells the program's threads how their communicator ended, and those that wait outside of it that
/// it did. The lock of the hand-over guards it.
class Ending {
 public:
  /// The error that broke the communicator; the first one stands.
  void break_with(const Error& error) {
    if (!error_) error_ = error;
  }
  const std::optional<Error>& error() const { return error_; }
  /// The first rank that left is known.
  void departed(int rank) { departed_ = rank; }
  /// The first rank that is gone: it left, died or is silent; -1: none is known to be.
  int gone_rank() const;
  /// raise_all() stores 1 in the word, which is held until then.
  void add_word(std::shared_ptr<uint32_t> word);
  void raise_all();

 private:
  std::optional<Error> error_;
  int departed_ = -1;
  std::vector<std::shared_ptr<uint32_t>> words_;
};

}  // namespace tutti
