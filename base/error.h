#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tutti {

/// The kind of an error. The numbers are part of the C ABI and never change.
enum class ErrorCode : int {
  invalid_argument = 1,  // the caller's mistake, found without another rank
  mismatch = 2,          // ranks disagree; the same message on every rank
  duplicate_name = 3,    // the name is already pending
  timeout = 4,           // a deadline passed
  peer_lost = 5,         // a rank died
  peer_silent = 6,       // a rank does not answer (stopped or cut off)
  peer_left = 7,         // a rank closed its Communicator while others needed it
  closed = 8,            // used after close, or after a fork
  authentication = 9,    // wrong job secret, or another user
  version = 10,          // peers or plugins have another version
  unavailable = 11,      // a backend, device or address does not exist
  io = 12,               // the operating system reported an error
  corrupt_data = 13,     // a damaged file or frame
  out_of_memory = 14,    // an allocation failed
  callback = 15,         // a user's callback failed, or waited for an operation
  internal = 16,         // a mistake in the library
};

/// Returns for example "peer lost".
std::string_view to_string(ErrorCode code) noexcept;

/// The only exception type of the library. what() is one complete line. It names the rank, the
/// tensor, the expected and the actual value (as far as they are known), and what to do next.
/// rank() and tensor() also return the first two.
class Error : public std::runtime_error {
 public:
  /// `message` is one complete line.
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ErrorCode code() const noexcept { return code_; }  // selects a remedy
  /// Returns the rank that the error is about (the one that died, disagrees or is late), or -1.
  int rank() const noexcept { return rank_; }
  /// Returns the name of the tensor that the error is about, or an empty text.
  const std::string& tensor() const noexcept { return tensor_; }

  Error& with_rank(int rank) & noexcept { return rank_ = rank, *this; }               // sets rank()
  Error&& with_rank(int rank) && noexcept { return rank_ = rank, std::move(*this); }  // sets rank()
  /// Sets tensor().
  Error& with_tensor(std::string_view tensor) & { return tensor_ = tensor, *this; }
  /// Sets tensor().
  Error&& with_tensor(std::string_view tensor) && { return tensor_ = tensor, std::move(*this); }

 private:
  ErrorCode code_;
  int rank_ = -1;
  std::string tensor_;
};

/// Returns an Error of code `io` that ends with the text of `error_number` (errno). If the cause is
/// a limit of this process, the text also names the limit and how to raise it.
Error system_error(std::string_view what, int error_number);

}  // namespace tutti
