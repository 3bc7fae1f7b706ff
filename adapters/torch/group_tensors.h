#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

// What ProcessGroup makes of the tensors that c10d hands to a call.

namespace tutti::torch {

/// Which call it is, for errors.
struct GroupCall {
  std::string_view name;  // c10d's
  int rank = 0;           // in the group

  /// Error(invalid_argument): "<name> on rank <rank>: <why>".
  Error refused(const std::string& why) const;
};

/// A contiguous tensor to work on instead of the caller's, and how its result comes back (empty: it
/// is the caller's own memory). Elements travel in row-major order, whatever the strides are.
struct InPlace {
  ::at::Tensor dense;
  std::function<void()> back;
};
InPlace in_place(const GroupCall& call, const ::at::Tensor& tensor);
/// A contiguous tensor with the same elements, only to be read.
::at::Tensor as_input(const GroupCall& call, const ::at::Tensor& tensor);
/// The one tensor of a list: c10d's calls for several devices in one process are not served.
const ::at::Tensor& single(const GroupCall& call, const std::vector<::at::Tensor>& tensors);
const std::vector<::at::Tensor>& single(const GroupCall& call,
                                        const std::vector<std::vector<::at::Tensor>>& lists);

/// The memory of a contiguous tensor as one row of elements. Throws Error(invalid_argument) for
/// types that can be moved but not reduced.
TensorView memory(const GroupCall& call, const ::at::Tensor& dense);
/// The same for operations that only move: what Tutti has no word for travels as bytes.
TensorView raw_memory(const ::at::Tensor& dense);
/// As how many elements one of this tensor's travels.
int64_t unit_of(const ::at::Tensor& tensor);

/// One tensor a rank, in one flat tensor: the inputs of a call that deals them, or its outputs,
/// which are filled from it.
class Parts {
 public:
  enum class Use { input, output };
  /// Throws Error(invalid_argument) where they are not `ranks` tensors of one type.
  Parts(const GroupCall& call, const std::vector<::at::Tensor>& tensors, int ranks, Use use);

  const ::at::Tensor& flat() const { return flat_; }
  const std::vector<int64_t>& counts() const { return counts_; }  // elements of each
  /// The same as raw_memory() counts them.
  std::vector<int64_t> rows() const;
  /// Copies what came into the caller's tensors.
  void hand_out() const;

 private:
  std::vector<::at::Tensor> tensors_;
  std::vector<int64_t> counts_;
  ::at::Tensor flat_;
};

/// Throws Error(invalid_argument) unless `input` has this type and number of elements.
void check_alike(const GroupCall& call, const ::at::Tensor& input, const ::at::Tensor& output,
                 int64_t count);

}  // namespace tutti::torch
