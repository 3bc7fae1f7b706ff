#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tutti/adapters/nn/kernels/cuda/libraries/libraries.h"
#include "tutti/tensor/dtype.h"

namespace tutti::cuda {

/// One operand of a product as cuBLASLt expects it. It is column-major, so a row-major matrix is
/// passed as its transpose; `rows` is the length of the contiguous dimension.
struct Matrix {
  void* data = nullptr;
  DataType dtype = DataType::f32;
  int64_t rows = 0, columns = 0;
  int64_t leading = 0;  // elements from one column to the next
  bool is_transposed = false;
  int64_t stride = 0;  // elements from one product's matrix to the next one's
};

/// d = a * b + beta * d. If `bias` is not null, it is a vector of d's dtype and of length rows(d)
/// that is added to each column. This is done `count` times, each time with the next matrices.
struct Product {
  Matrix a, b, d;
  int64_t count = 1;
  float beta = 0;
  const void* bias = nullptr;
};

struct ProductOptions {
  bool allows_tf32 = false;  // f32 factors may be rounded to 10 bits
  size_t most_workspace = size_t{32} << 20;
};

/// Products of matrices by cuBLASLt. Descriptors and algorithm are chosen at the first use of a
/// shape and kept. Sums are in f32, always in the same order for a shape.
class Products {
 public:
  /// `library` is borrowed. The device must be current here and in multiply().
  Products(const CublasLt& library, const ProductOptions& options);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Returns how much workspace multiply() needs for the product. Throws Error(unavailable) with
  /// the product's shape if the library has no algorithm for it.
  size_t workspace_bytes(const Product& product);
  /// Queues the product on the stream. `workspace` is aligned to 256 bytes.
  void multiply(const Product& product, void* workspace, cudaStream_t stream);
  size_t plans() const { return plans_.size(); }

 private:
  struct Plan;
  Plan& plan(const Product& product);

  const CublasLt& library_;
  const ProductOptions options_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<std::vector<int64_t>, std::unique_ptr<Plan>> plans_;
};

}  // namespace tutti::cuda
