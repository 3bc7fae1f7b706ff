#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Host memory for the tensors of passes, reused by later passes. Newly allocated memory would be
/// zeroed and faulted in page by page in each step. The pool never keeps more unused memory than
/// the most that was in use at one time. Tensors may outlive the pool, and any thread may release
/// them.
class TensorPool : public std::enable_shared_from_this<TensorPool> {
 public:
  ~TensorPool();
  /// Returns a tensor with arbitrary contents. Throws Error(out_of_memory).
  Tensor make(const Shape& shape, DataType dtype);
  size_t unused_bytes() const;

 private:
  struct Block {
    std::byte* memory;
    size_t bytes;
  };
  Block take(size_t bytes);
  void give_back(Block block);

  mutable std::mutex mutex_;
  std::multimap<size_t, std::byte*> unused_;  // keyed by their bytes
  size_t unused_bytes_ = 0, used_bytes_ = 0, most_used_bytes_ = 0;
};

}  // namespace tutti
