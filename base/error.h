#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tutti {

/// What kind of thing went wrong. The numbers are part of the C ABI and never change.
enum class ErrorCode : int {
  invalid_argument = 1,  // the caller's own mistake, seen without asking another rank
  mismatch = 2,          // ranks disagree; the same message on every rank
  duplicate_name = 3,    // the name is already pending
  timeout = 4,           // a deadline passed
  peer_lost = 5,         // a rank died
  peer_silent = 6,       // a rank does not answer (stopped or cut off)
  peer_left = 7,         // a rank closed its Communicator while it was needed
  closed = 8,            // use after close, or after a fork
  authentication = 9,    // wrong job secret or foreign user
  version = 10,          // peers or plugins of another version
  unavailable = 11,      // a backend, device or address is not there
  io = 12,               // the operating system refused
  corrupt_data = 13,     // a damaged file or frame
  out_of_memory = 14,    // an allocation failed
  callback = 15,         // a user's callback threw, or waited
  internal = 16,         // our own mistake
};

/// "peer lost" and so on.
std::string_view to_string(ErrorCode code) noexcept;

/// The one exception type of the library. what() is a complete line that names rank, tensor, what
/// was expected, what was got and what to do next, as far as they are known; the fields repeat
/// them.
class Error : public std::runtime_error {
 public:
  /// `message`: one whole line.
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ErrorCode code() const noexcept { return code_; }  // which remedy may help
  /// The rank that the error is about (the one that died, disagrees, is late), or -1.
  int rank() const noexcept { return rank_; }
  /// The tensor that the error is about, or empty.
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

/// An Error of code `io` that ends with the text of `error_number` (errno) and, where that is a
/// limit of this process, which one and what raises it.
Error system_error(std::string_view what, int error_number);

}  // namespace tutti
