#pragma once

#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tutti/adapters/c/tutti.h"
#include "tutti/base/error.h"
#include "tutti/core/communicator.h"

// The structs behind the handles of the C interface, and conversions of its values to the
// library's.

struct tutti_name {
  tutti::TensorHandle handle;
  std::string name;
};
struct tutti_comm {
  explicit tutti_comm(std::unique_ptr<tutti::Communicator> made)
      : communicator(std::move(made)), backend(communicator->backend()) {}
  const std::unique_ptr<tutti::Communicator> communicator;
  const std::string backend;
  std::mutex mutex = {};
  std::map<std::string, tutti_name> names = {};  // by type and name; guarded by mutex
};
struct tutti_work {
  tutti::Work work;
  std::mutex mutex = {};
  // Outputs that were handed out. Their memory lives as long as the handle. Guarded by mutex.
  std::vector<tutti::Tensor> outputs = {};
};
struct tutti_store {
  std::shared_ptr<tutti::Store> store;
};

namespace tutti::c {

inline Error refused(const std::string& message) { return {ErrorCode::invalid_argument, message}; }

template <class Pointer>
void need(Pointer pointer, const char* what) {
  if (pointer == nullptr) throw refused(fmt::format("{} must not be NULL", what));
}

/// These functions throw Error(invalid_argument), whose text says what was given and what is
/// wanted. `what` is the name of the argument in that text.
Communicator& communicator_of(tutti_comm_t comm);
DataType dtype_from(int dtype);
ReduceOp op_from(int op);
Device device_from(int device, int index, const char* what);
Shape shape_from(const int64_t* extents, int dimensions, const char* what);
TensorView view_of(const tutti_tensor_t* tensor, const char* what);
/// NULL means no tensor.
TensorView view_or_none(const tutti_tensor_t* tensor, const char* what);
/// NULL means no numbers; otherwise there is one number per rank.
std::span<const int64_t> one_per_rank(const Communicator& communicator, const int64_t* numbers);
/// Returns the options with this header's fields, in `room` if the program has another header.
const tutti_reduce_options_t& read_options(const tutti_reduce_options_t* given,
                                           tutti_reduce_options_t& room);
/// NULL means the defaults.
ReduceOptions options_from(const tutti_reduce_options_t* given);
/// Returns the library's view as a tensor of the C interface.
tutti_tensor_t tensor_of(const TensorView& view);

}  // namespace tutti::c
