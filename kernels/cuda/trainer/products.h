#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tutti/kernels/cuda/libraries/libraries.h"
#include "tutti/tensor/dtype.h"

namespace tutti::cuda {

/// One side of a product as cuBLASLt takes it: column-major, so that a row-major matrix is its own
/// transpose, and `rows` is the length of what lies beside each other.
struct Matrix {
  void* data = nullptr;
  DataType dtype = DataType::f32;
  int64_t rows = 0, columns = 0;
  int64_t leading = 0;  // elements from one column to the next
  bool is_transposed = false;
  int64_t stride = 0;  // elements from one product's matrix to the next one's
};

/// d = a * b + beta * d, with a vector of d's type and length rows(d) added to each column unless
/// it is null; so many times, each with the next matrices.
struct Product {
  Matrix a, b, d;
  int64_t count = 1;
  float beta = 0;
  const void* bias = nullptr;
};

struct ProductOptions {
  bool allows_tf32 = false;  // f32 factors rounded to 10 bits
  size_t most_workspace = size_t{32} << 20;
};

/// Products of matrices by cuBLASLt: descriptors and algorithm are made at the first use of a shape
/// and kept. Sums are in f32, in an order that a shape always has.
class Products {
 public:
  /// `library` is borrowed; the device must be current here and in multiply().
  Products(const CublasLt& library, const ProductOptions& options);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// How much memory multiply() needs for it. Throws Error(unavailable) where the library knows no
  /// algorithm, with the product's shape.
  size_t workspace_bytes(const Product& product);
  /// In the stream's order; `workspace` is aligned to 256 bytes.
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
