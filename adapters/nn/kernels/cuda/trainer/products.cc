#include "tutti/adapters/nn/kernels/cuda/trainer/products.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti::cuda {

namespace {

cudaDataType_t cuda_type(DataType dtype) {
  switch (dtype) {
    case DataType::f32:
      return CUDA_R_32F;
    case DataType::bf16:
      return CUDA_R_16BF;
    case DataType::f16:
      return CUDA_R_16F;
    default:
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a product of {} was asked for; expected f32, bf16 or f16",
                              to_string(dtype)));
  }
}

// Returns the alignment on which a plan may rely. An algorithm that was chosen for better aligned
// memory would read wrong data.
uint32_t alignment_of(const Matrix& m) {
  const auto bits = reinterpret_cast<uintptr_t>(m.data) |
                    static_cast<uintptr_t>(m.stride * size_of(m.dtype)) | uintptr_t{256};
  return static_cast<uint32_t>(bits & -bits);
}

std::vector<int64_t> key_of(const Product& p) {
  std::vector<int64_t> key;
  for (const auto* m : {&p.a, &p.b, &p.d}) {
    const int64_t all[] = {static_cast<int64_t>(m->dtype),
                           m->rows,
                           m->columns,
                           m->leading,
                           m->is_transposed,
                           m->stride,
                           alignment_of(*m)};
    key.insert(key.end(), std::begin(all), std::end(all));
  }
  key.push_back(p.count);
  key.push_back(p.beta != 0);
  key.push_back(p.bias != nullptr);
  return key;
}

std::string text_of(const Matrix& m) {
  return fmt::format("{}[{},{}]{}", to_string(m.dtype), m.rows, m.columns,
                     m.is_transposed ? "^T" : "");
}

}  // namespace

struct Products::Plan {
  explicit Plan(const CublasLt& all) : library(all) {}
  ~Plan() {
    for (auto* layout : {a, b, d})
      if (layout != nullptr) library.cublasLtMatrixLayoutDestroy(layout);
    if (desc != nullptr) library.cublasLtMatmulDescDestroy(desc);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    library.check(library.cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value),
                  "set an attribute of a product");
  }
  void describe(const Matrix& m, int64_t matrices, cublasLtMatrixLayout_t& layout) {
    library.check(library.cublasLtMatrixLayoutCreate(&layout, cuda_type(m.dtype),
                                                     static_cast<uint64_t>(m.rows),
                                                     static_cast<uint64_t>(m.columns), m.leading),
                  "describe a matrix");
    if (matrices == 1) return;
    const auto put = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      library.check(
          library.cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
          "describe some matrices");
    };
    put(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(matrices));
    put(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.stride);
  }

  const CublasLt& library;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulHeuristicResult_t chosen = {};
};

Products::Products(const CublasLt& library, const ProductOptions& options)
    : library_(library), options_(options) {
  library_.check(library_.cublasLtCreate(&handle_), "begin");
}

Products::~Products() {
  plans_.clear();
  library_.cublasLtDestroy(handle_);
}

Products::Plan& Products::plan(const Product& product) {
  auto key = key_of(product);
  if (const auto found = plans_.find(key); found != plans_.end()) return *found->second;
  auto made = std::make_unique<Plan>(library_);
  auto& plan = *made;
  const auto compute = options_.allows_tf32 && product.a.dtype == DataType::f32
                           ? CUBLAS_COMPUTE_32F_FAST_TF32
                           : CUBLAS_COMPUTE_32F;
  library_.check(library_.cublasLtMatmulDescCreate(&plan.desc, compute, CUDA_R_32F),
                 "describe a product");
  plan.set(CUBLASLT_MATMUL_DESC_TRANSA, product.a.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  plan.set(CUBLASLT_MATMUL_DESC_TRANSB, product.b.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (product.bias != nullptr) {
    plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    plan.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(product.d.dtype));
    plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  }
  plan.describe(product.a, product.count, plan.a);
  plan.describe(product.b, product.count, plan.b);
  plan.describe(product.d, product.count, plan.d);

  cublasLtMatmulPreference_t preference = nullptr;
  library_.check(library_.cublasLtMatmulPreferenceCreate(&preference), "prefer");
  int found = 0;
  auto status = CUBLAS_STATUS_SUCCESS;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS)
      status = library_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                             sizeof value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, options_.most_workspace);
  // Partial sums are added in f32, never in the output's dtype.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(product.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(product.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(product.d));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(product.d));
  if (status == CUBLAS_STATUS_SUCCESS)
    status = library_.cublasLtMatmulAlgoGetHeuristic(handle_, plan.desc, plan.a, plan.b, plan.d,
                                                     plan.d, preference, 1, &plan.chosen, &found);
  library_.cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) library_.check(status, "choose an algorithm");
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || found == 0)
    throw Error(ErrorCode::unavailable,
                fmt::format("cuBLASLt has no algorithm for {} * {} = {}; keep this layer on the "
                            "cpu, or use another type",
                            text_of(product.a), text_of(product.b), text_of(product.d)));
  return *plans_.emplace(std::move(key), std::move(made)).first->second;
}

size_t Products::workspace_bytes(const Product& product) {
  return plan(product).chosen.workspaceSize;
}

void Products::multiply(const Product& product, void* workspace, cudaStream_t stream) {
  auto& plan = this->plan(product);
  if (product.bias != nullptr) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  const float alpha = 1;
  library_.check(
      library_.cublasLtMatmul(handle_, plan.desc, &alpha, product.a.data, plan.a, product.b.data,
                              plan.b, &product.beta, product.d.data, plan.d, product.d.data, plan.d,
                              &plan.chosen.algo, workspace, plan.chosen.workspaceSize, stream),
      "multiply");
}

}  // namespace tutti::cuda
